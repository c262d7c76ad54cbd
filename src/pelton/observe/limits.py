"""Limits of a queue, and how much of each is in use."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pelton.api import MessageNotFoundError
from pelton.api.times import SECOND
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.observe.summaries import LimitSummary
from pelton.queue import JobLimit
from pelton.queue.model.limits import SlotRecord, decode
from pelton.queue.model.naming import QueueNames
from pelton.runtime import WallOffset, wall_ahead

_MOST_KEYS: Final = 200


async def limit_summaries(jet: Jet, queue: str) -> list[LimitSummary]:
    """Return the limits of a queue, in the order in which they were set. Raises QueueNotFoundError.

    Of a limit for each key, the first 200 keys that hold slots are counted.
    """
    names, opened = QueueNames(queue), await jet.queue(queue, create=False)
    limits = await opened.limits()
    if not limits:
        return []
    stream = await jet.stream(names.running)
    return [await _summary(jet, stream, names, limit) for limit in limits]


async def _summary(jet: Jet, stream: Stream, names: QueueNames, limit: JobLimit) -> LimitSummary:
    records = await _records(stream, names, limit)
    held = [sum(len(slots.jobs) for slots in record.workers.values()) for record in records]
    clock, rate = jet.runtime.clock, limit.rate
    now, offset = clock.now(), WallOffset(clock.boot_id(), wall_ahead(clock))
    slack = 0 if rate is None else (rate.burst - 1) * rate.interval_ns
    waits = [max(record.ahead_on(offset) - slack - now, 0) for record in records if rate is not None]
    return LimitSummary(
        queue=names.queue,
        job=limit.job,
        per_key=limit.per_key,
        concurrency=limit.concurrency,
        starts=None if rate is None else rate.starts,
        per=0.0 if rate is None else float(rate.per),  # type: ignore[arg-type]
        burst=0 if rate is None else rate.burst,
        running=sum(held),
        keys=sum(map(bool, held)) if limit.per_key else 0,
        fullest=max(held, default=0),
        next_start=max(waits, default=0) / SECOND,
    )


async def _records(stream: Stream, names: QueueNames, limit: JobLimit) -> list[SlotRecord]:
    if not limit.per_key:
        try:
            return [decode((await stream.get_last_message(names.slots_subject(limit.scope))).data)]
        except MessageNotFoundError:
            return []
    found: list[SlotRecord] = []
    info = await stream.info(subjects_filter=names.slots_subject(f"{limit.scope}.*"))
    for subject in sorted(info.state.subjects or ())[:_MOST_KEYS]:
        with suppress(MessageNotFoundError):
            found.append(decode((await stream.get_last_message(subject)).data))
    return found
