"""Waiting for a message that ends a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pelton.api import ServerTimeoutError

if TYPE_CHECKING:
    from pelton.jet import Message, Stream
    from pelton.runtime import Clock

_LAST_LOOK_S: Final = 0.05


async def first_of(stream: Stream, subjects: Sequence[str], clock: Clock, timeout: float | None) -> Message | None:
    """Return the first message on any of ``subjects``, there already or to come; None where none is in time (seconds).

    On a cluster the consumer lives on one server. Where that is lost another is made, which misses nothing: it reads
    from the beginning. Raises ServerTimeoutError where none can be made.
    """
    end = None if timeout is None else clock.monotonic() + timeout
    while True:
        consumer = await stream.create_consumer(filter_subjects=list(subjects), ack_policy="none")
        left = None if end is None else max(end - clock.monotonic(), _LAST_LOOK_S)
        try:
            found = await consumer.fetch(1, timeout=left)
        except ServerTimeoutError:
            continue
        finally:
            await consumer.delete()
        return found[0] if found else None
