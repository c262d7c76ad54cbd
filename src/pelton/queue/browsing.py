"""Reading a queue's streams: from their beginning to their present end, and by a job's id."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from pelton.api import ConfigError, Delivered

if TYPE_CHECKING:
    from pelton.jet import Stream

_PAGE: Final = 256


def sequence_of(job_id: str) -> int:
    """Return the sequence that a job's id names. Raises ConfigError."""
    if not job_id.isascii() or not job_id.isdigit() or int(job_id) < 1:
        raise ConfigError(f"job id {job_id!r} is none: ids are the numbers that enqueue returns")
    return int(job_id)


async def browse(stream: Stream, filter_subject: str) -> AsyncGenerator[tuple[int, bytes], None]:
    """Read sequences and data of a stream from its beginning to its present end."""
    async with aclosing(deliveries(stream, filter_subject)) as found:
        async for delivered in found:
            yield delivered.seq, delivered.data


async def deliveries(stream: Stream, filter_subject: str) -> AsyncGenerator[Delivered, None]:
    """Read a stream from its beginning to its present end, with an ephemeral consumer."""
    consumer = await stream.create_consumer(ack_policy="none", filter_subject=filter_subject)
    try:
        while found := await consumer.fetch(_PAGE, no_wait=True):
            for message in found:
                yield message.delivered
    finally:
        await consumer.delete()
