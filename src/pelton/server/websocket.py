"""Clients by WebSocket: frames carry the protocol's bytes, as they would travel on a socket of their own.

The protocol itself (RFC 6455, and 7692 for compression) is that of ``websockets``, which does no input or output. To
the connection behind it, a bridge is a transport; to the socket's transport, it is a protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from websockets.exceptions import InvalidState
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from pelton.server.clients import Client
from pelton.server.connection import SharedBuffer
from pelton.server.settings.runtime import WebSocketDoor
from pelton.wire.protocol import TOO_LONG

# What a handshake may have, with a browser's cookies; what the frames of a login may; and a frame beyond a message.
_HANDSHAKE: Final = 16 << 10
_LOGIN: Final = 8 << 10
_FRAME_BESIDE: Final = 1 << 20
_GOING_AWAY: Final = 1001
_FORBIDDEN: Final = 403


class WebSocketBridge(asyncio.BufferedProtocol):
    """One WebSocket; ``make`` makes the client behind it once the handshake is done; all read into ``buffer``.

    ``arrived`` is called when the handshake is over, however it ended.
    """

    def __init__(
        self, door: WebSocketDoor, make: Callable[[], Client], buffer: SharedBuffer, arrived: Callable[[], None]
    ) -> None:
        self._door = door
        self._make = make
        self._buffer = buffer
        self._arrived = arrived
        self._client: Client | None = None
        self._raw: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._left = _HANDSHAKE
        extensions = [ServerPerMessageDeflateFactory()] if door.compression else None
        self._frames = ServerProtocol(extensions=extensions, max_size=(None, _LOGIN))

    # --- the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's handshake, for a while."""
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._timer = asyncio.get_running_loop().call_later(self._door.timeout, transport.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections read into."""
        client = self._client
        return self._buffer.for_login if client is None or client.has_to_log_in else self._buffer.room_for(id(self))

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what the frames carry."""
        data, client = self._buffer.take(nbytes), self._client
        if client is not None and client.state == "closed":
            # It is read until it has closed its side.
            return
        if client is None or client.has_to_log_in:
            self._left -= nbytes
            if self._left < 0:
                self._too_long()
                return
        self._limit_frames()
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                assert self._client is not None
                self._client.receive(bytes(event.data))
        self._flush()
        if self._frames.close_expected() and self._raw is not None:
            self._raw.close()

    def _too_long(self) -> None:
        if self._client is None:
            self.raw.abort()
        else:
            self._client.refuse(TOO_LONG)

    def _shake_hands(self, request: Request) -> None:
        if self._timer is not None:
            self._timer.cancel()
        response = self._frames.accept(request)
        if not self._door.admits(request.headers.get("Origin", ""), request.headers.get("Host", "")):
            response = self._frames.reject(_FORBIDDEN, "origin not allowed\n")
        self._frames.send_response(response)
        self._flush()
        if self._frames.state is State.OPEN:
            self._left = _LOGIN
            self._arrived()
            self._client = self._make()
            self._client.connection_made(WebSocketTransport(self))

    def _limit_frames(self) -> None:
        """Let a frame be as large as the client's messages may be, once they may; before, if it is not compressed."""
        client = self._client
        if client is not None and not (client.has_to_log_in and self._frames.extensions):
            self._frames.max_fragment_size = client.max_payload + _FRAME_BESIDE

    def eof_received(self) -> bool:
        """Close the connection when the client has."""
        self._frames.receive_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Let the client go."""
        if self._timer is not None:
            self._timer.cancel()
        client, self._client = self._client, None
        self._arrived()
        if client is not None:
            client.connection_lost(error)
        # A generator that holds what holds it.
        self._frames.parser.close()

    def pause_writing(self) -> None:
        """Tell the client's connection that it is not read."""
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        """Tell the client's connection that it is read again."""
        if self._client is not None:
            self._client.resume_writing()

    # --- the client's side

    @property
    def raw(self) -> asyncio.Transport:
        """The socket's own transport."""
        assert self._raw is not None
        return self._raw

    def send(self, data: bytes) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._flush()

    def close(self) -> None:
        """Say goodbye, and close the connection."""
        self._say_goodbye()
        self.raw.close()

    def end(self) -> None:
        """Say goodbye, send nothing more, and let the client close the connection."""
        self._say_goodbye()
        self.raw.write_eof()

    def _say_goodbye(self) -> None:
        # If the client has said goodbye first, there is nothing to say.
        with suppress(InvalidState):
            self._frames.send_close(_GOING_AWAY)
        self._flush()

    def _flush(self) -> None:
        data = b"".join(self._frames.data_to_send())
        if data and not self.raw.is_closing():
            self.raw.write(data)


class WebSocketTransport(asyncio.Transport):
    """What a client's connection writes to."""

    def __init__(self, bridge: WebSocketBridge) -> None:
        super().__init__()
        self._bridge = bridge

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._bridge.send(bytes(data))

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._bridge.close()

    def can_write_eof(self) -> bool:
        """Whether the connection can end on this side alone."""
        return self._bridge.raw.can_write_eof()

    def write_eof(self) -> None:
        """Send nothing more."""
        self._bridge.end()

    def abort(self) -> None:
        """Close the connection at once."""
        self._bridge.raw.abort()

    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._bridge.raw.is_closing()

    def pause_reading(self) -> None:
        self._bridge.raw.pause_reading()

    def resume_reading(self) -> None:
        self._bridge.raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return self._bridge.raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the client counts as one that does not read."""
        self._bridge.raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket knows of itself."""
        return self._bridge.raw.get_extra_info(name, default)
