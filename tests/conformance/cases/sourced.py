"""Shared by the cases about sources and mirrors: an origin, and the contents of its copies."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pelton.api.errors import MessageNotFoundError
from pelton.api.info import StreamSourceInfo
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import eventually

ALL: Final = {"name": "O"}
SOURCE_HEADER: Final = "Nats-Stream-Source"
Stored = tuple[int, str, bytes]


async def make_origin(jet: Jet, count: int = 3, **fields: Any) -> Stream:
    """Return a stream with ``count`` messages, each on its own subject."""
    stream = await jet.create_stream("O", subjects=["o.>"], **fields)
    for number in range(1, count + 1):
        await jet.publish(f"o.{number}", b"%d" % number)
    return stream


async def stored(stream: Stream) -> list[Stored]:
    state = (await stream.info(deleted_details=True)).state
    found = set(range(max(state.first_seq, 1), state.last_seq + 1)) - set(state.deleted or ())
    messages = []
    for seq in sorted(found):
        # What another stream takes in the meantime is no longer stored.
        with suppress(MessageNotFoundError):
            messages.append(await stream.get_message(seq))
    return [(message.seq, message.subject, message.data) for message in messages]


async def becomes(stream: Stream, *expected: Stored) -> None:
    await eventually(lambda: stored(stream), list(expected))


async def data_of(stream: Stream) -> list[bytes]:
    return [data for _, _, data in await stored(stream)]


async def source_of(stream: Stream, number: int = 0) -> StreamSourceInfo:
    return (await stream.info()).sources[number]


async def settled(stream: Stream, seq: int) -> StreamSourceInfo:
    """The only source of a stream, once it has reached a sequence."""

    async def reached() -> int:
        return (await source_of(stream)).seq

    await eventually(reached, seq)
    return await source_of(stream)
