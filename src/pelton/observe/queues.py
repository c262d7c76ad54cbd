"""Queues, their jobs and their dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final, cast

import msgspec

from pelton.api import (
    ConfigError,
    JobNotFoundError,
    MessageNotFoundError,
    QueueNotFoundError,
    StreamInfoRequest,
    StreamNotFoundError,
    rfc3339,
)
from pelton.connect import Jet
from pelton.observe.queue_history import ended_jobs, rate, run_times, spread
from pelton.observe.summaries import QueueSummary
from pelton.queue import DeadLetter, JobInfo, JobSchedule, JobState, TenantCounts
from pelton.queue.backing.scan import number_of_subjects, orders_in
from pelton.queue.inspect.views import JobViews
from pelton.queue.model.checks import checked_id
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.orders import Orders
from pelton.queue.opening import look_at_queue

_UNDERWAY: Final[tuple[JobState, ...]] = ("running", "retrying", "held")
_dead: Final = msgspec.json.Decoder(DeadLetter).decode


async def queue_summaries(jet: Jet, *, limit: int | None = None) -> list[QueueSummary]:
    """Return all queues by name, or the first ``limit``."""
    found = []
    for name in (await jet.queue_names())[:limit]:
        # One that was removed meanwhile.
        with suppress(QueueNotFoundError, StreamNotFoundError):
            found.append(await queue_summary(jet, name))
    return found


async def queue_summary(jet: Jet, queue: str) -> QueueSummary:
    """Return one queue. Raises QueueNotFoundError, ConfigError for an impossible name."""
    names = QueueNames(queue)
    context = await look_at_queue(jet, names)
    counts, oldest = await JobViews(context).counts_and_oldest()
    outcomes, now = await ended_jobs(jet, queue), jet.runtime.clock.now()
    pauses = await _pauses(jet, names)
    return QueueSummary(
        name=queue,
        exclusive=context.exclusive,
        lease=context.lease,
        **msgspec.structs.asdict(counts),
        dead_letters=await _messages_in(jet, names.dead),
        oldest_at=rfc3339(oldest) if oldest else "",
        last_ended_at=rfc3339(outcomes[-1].finished_at) if outcomes else "",
        per_minute=rate(outcomes, now),
        wait=spread([one.started_at - one.enqueued_at for one in outcomes if one.started_at]),
        run=run_times(outcomes),
        paused=pauses.is_all_paused,
        paused_keys=pauses.paused_keys,
        paused_jobs=pauses.paused_jobs,
    )


async def _pauses(jet: Jet, names: QueueNames) -> Orders:
    orders = Orders()
    with suppress(StreamNotFoundError):
        for order in await orders_in(await jet.stream(names.control), names.order_subject("pause.>")):
            orders.heed(order)
    return orders


async def _messages_in(jet: Jet, name: str) -> int:
    try:
        return (await jet.backend.call(StreamInfoRequest(name=name))).state.messages
    except StreamNotFoundError:
        return 0


# --- jobs


async def unfinished_jobs(
    jet: Jet,
    queue: str,
    *,
    state: JobState | None = None,
    key: str | None = None,
    job: str | None = None,
    tenant: str | None = None,
) -> AsyncGenerator[JobInfo, None]:
    """Iterate over the jobs that have not ended, oldest first.

    Only those of a state, a key, a name or a tenant, if given. Raises QueueNotFoundError, ConfigError.
    """
    jobs = (await jet.queue(queue, create=False)).jobs(state=state, key=key, job=job, tenant=tenant)
    async with aclosing(cast(AsyncGenerator[JobInfo, None], jobs)) as found:
        async for info in found:
            yield info


async def jobs_underway(jet: Jet, queue: str, limit: int = 50) -> list[JobInfo]:
    """Return jobs that run, then those that will be tried again, or are held, at most ``limit``.

    Raises QueueNotFoundError.
    """
    found: list[JobInfo] = []
    for state in _UNDERWAY:
        async with aclosing(unfinished_jobs(jet, queue, state=state)) as jobs:
            async for job in jobs:
                if len(found) == limit:
                    return found
                found.append(job)
    return found


async def job_details(jet: Jet, queue: str, job_id: str) -> JobInfo:
    """Return one job, in whatever state it is. Raises JobNotFoundError, QueueNotFoundError."""
    opened = await jet.queue(queue, create=False)
    try:
        return await opened.get(job_id)
    except ConfigError as error:
        raise JobNotFoundError(queue, job_id, str(error)) from None


async def job_schedules(jet: Jet, queue: str) -> list[JobSchedule]:
    """Return the schedules of a queue, by name. Raises QueueNotFoundError, ConfigError."""
    return await (await jet.queue(queue, create=False)).schedules()


async def tenant_counts(jet: Jet, queue: str, limit: int = 25) -> list[TenantCounts]:
    """Return the tenants with the most jobs, at most ``limit``. Raises QueueNotFoundError, ConfigError."""
    return await (await jet.queue(queue, create=False)).tenants(limit)


async def schedule_counts(jet: Jet, queue: str) -> dict[str, int]:
    """Return how many schedules of a queue are active, and how many are paused."""
    names, found = QueueNames(queue), {"active": 0, "paused": 0}
    places = (("active", names.jobs, names.crons), ("paused", names.control, names.paused_schedule("*")))
    for state, stream, subjects in places:
        with suppress(StreamNotFoundError):
            found[state] = await number_of_subjects(await jet.stream(stream), subjects)
    return found


async def dead_letter(jet: Jet, queue: str, job_id: str) -> DeadLetter | None:
    """Return what a failed job left; None if there is nothing, or if it was redriven. Raises ConfigError."""
    names = QueueNames(queue)
    checked_id(queue, job_id)
    try:
        stream = await jet.stream(names.dead)
        return _dead((await stream.get_last_message(names.dead_subject(job_id))).data)
    except (StreamNotFoundError, MessageNotFoundError):
        return None


async def dead_letters(
    jet: Jet, queue: str, *, key: str | None = None, job: str | None = None
) -> AsyncGenerator[DeadLetter, None]:
    """Iterate over the failed jobs that can be redriven, oldest first; only those of a key or a name, if given.

    Raises QueueNotFoundError, ConfigError.
    """
    letters = (await jet.queue(queue, create=False)).dead_letters(key=key, job=job)
    async with aclosing(cast(AsyncGenerator[DeadLetter, None], letters)) as found:
        async for letter in found:
            yield letter
