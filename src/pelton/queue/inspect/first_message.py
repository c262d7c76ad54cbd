"""Waiting for a message that ends a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pelton.api import ServerTimeoutError
from pelton.runtime import Deadline

if TYPE_CHECKING:
    from pelton.jet import Message, Stream
    from pelton.runtime import Clock

_LAST_LOOK_S: Final = 0.05


async def first_of(
    stream: Stream, subjects: Sequence[str], clock: Clock, timeout: float | None, after: int = 0
) -> Message | None:
    """Return the first message on any of ``subjects``, stored or to come; None if there is none in time (seconds).

    Only those ``after`` a sequence count.

    On a cluster the consumer lives on one server. If that server is lost, a new consumer is made, which misses nothing
    because it reads from the beginning. Raises ServerTimeoutError if none can be made.
    """
    deadline = Deadline(clock, timeout)
    start: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1} if after else {}
    while True:
        consumer = await stream.create_consumer(filter_subjects=list(subjects), ack_policy="none", **start)
        left = deadline.left
        try:
            found = await consumer.fetch(1, timeout=None if left is None else max(left, _LAST_LOOK_S))
        except ServerTimeoutError:
            continue
        finally:
            await consumer.delete()
        return found[0] if found else None
