"""What travels between a process and the one that writes for it: requests and replies, a round of the loop in a frame.

A frame is its length and a list in MessagePack. What is rare (administrative requests, errors) is pickled within it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from pelton.api import Delivered, Outgoing, PullRequest, Settled

T = TypeVar("T")
_LENGTH = 4


class PullAsked(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A pull."""

    id: int
    stream: str
    consumer: str
    request: PullRequest


class SettleAsked(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Deliveries of one consumer that ended."""

    id: int
    stream: str
    consumer: str
    endings: Sequence[Settled]


class PublishAsked(msgspec.Struct, array_like=True, tag=3, gc=False):
    """All publishes of one round of the loop."""

    id: int
    messages: Sequence[Outgoing]


class CallAsked(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Any other method of the port: its name and arguments, pickled."""

    id: int
    pickled: bytes


class GivenUp(msgspec.Struct, array_like=True, tag=5, gc=False):
    """Nobody waits for the answer any more."""

    id: int


Asked = PullAsked | SettleAsked | PublishAsked | CallAsked | GivenUp


class Pulled(msgspec.Struct, array_like=True, tag=1, gc=False):
    """What a pull got."""

    id: int
    found: Sequence[Delivered]


class AllDone(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Every delivery was settled."""

    id: int


class Stored(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Every message was stored in one stream, and where."""

    id: int
    stream: str
    seqs: Sequence[int]


class Answered(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Any other result, pickled; ``failed``: an error to raise."""

    id: int
    pickled: bytes
    failed: bool


Reply = Pulled | AllDone | Stored | Answered

asked_decoder: msgspec.msgpack.Decoder[list[Asked]] = msgspec.msgpack.Decoder(list[Asked])
reply_decoder: msgspec.msgpack.Decoder[list[Reply]] = msgspec.msgpack.Decoder(list[Reply])
_encoder = msgspec.msgpack.Encoder()


class FramePipe(asyncio.Protocol, Generic[T]):
    """One end of a connection: what is sent in one round of the loop is one frame, and one write."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[list[T]], receive: Callable[[FramePipe[T], T], None]) -> None:
        self._decode = decoder.decode
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray()
        self._out: list[Any] = []
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= _LENGTH:
            end = begin + _LENGTH + int.from_bytes(self._buffer[begin : begin + _LENGTH], "little")
            if end > len(self._buffer):
                break
            items = self._decode(bytes(self._buffer[begin + _LENGTH : end]))
            begin = end
            for item in items:
                self._receive(self, item)
        del self._buffer[:begin]

    def send(self, item: Any) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(item)

    def _flush(self) -> None:
        assert self._transport is not None
        out, self._out = self._out, []
        if self._lost.is_set():
            return
        frame = bytearray(_LENGTH)
        _encoder.encode_into(out, frame, _LENGTH)
        frame[:_LENGTH] = (len(frame) - _LENGTH).to_bytes(_LENGTH, "little")
        self._transport.write(frame)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self._lost.wait()
