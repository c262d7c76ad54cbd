"""Queues, their jobs and their dead letters.

A file is read by snapshots: what its workers hold is what their consumers have delivered. On a cluster, an exclusive
queue keeps that elsewhere, so there the queue itself is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Final, cast

import msgspec

from pelton.api import (
    ConfigError,
    ConsumerInfo,
    ConsumerUnsettled,
    JobNotFoundError,
    MessageNotFoundError,
    QueueNotFoundError,
    StoreBusyError,
    StreamInfoRequest,
    StreamNotFoundError,
    Unsettled,
    rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.observe.queue_history import ended_jobs, rate, run_times, spread
from pelton.observe.streams import QUEUE_MARK, consumer_infos, is_embedded
from pelton.observe.summaries import QueueSummary
from pelton.queue import Attempt, DeadLetter, Envelope, JobCounts, JobInfo, JobSchedule, JobState, Outcome, TenantCounts
from pelton.queue.backing.beginnings import BegunJobs
from pelton.queue.backing.tenant_lines import tenants_with_jobs
from pelton.queue.backing.unfinished_jobs import scheduled_jobs, with_waiting_flow
from pelton.queue.inspect.job_states import JobStates, job_states, limit_names, oldest_at
from pelton.queue.model.checks import checked_id
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.orders import Order, Orders
from pelton.queue.model.states import Ending

_LEASE: Final = "pelton.queue.lease"
_NOT_COMPLETED: Final[tuple[Ending, ...]] = ("failed", "cancelled", "expired")
_UNDERWAY: Final[tuple[JobState, ...]] = ("running", "retrying", "held")
_HISTORY: Final = "SELECT id, subjects_upto FROM streams JOIN stream_state USING(id) WHERE name=?"
# The subjects of the newest messages are not counted yet (docs/file-format.md).
_ENDED: Final = (
    "SELECT (SELECT count(*) FROM subjects WHERE stream=:stream AND subject>=:low AND subject<:high AND msgs>0) + "
    "(SELECT count(*) FROM (SELECT DISTINCT subject AS name FROM {} "
    "WHERE seq>:upto AND subject>=:low AND subject<:high) "
    "WHERE NOT EXISTS(SELECT 1 FROM subjects WHERE stream=:stream AND subject=name AND msgs>0))"
)
_envelope: Final = msgspec.json.Decoder(Envelope).decode
_outcome: Final = msgspec.json.Decoder(Outcome).decode
_attempt: Final = msgspec.json.Decoder(Attempt).decode
_order: Final = msgspec.json.Decoder(Order).decode
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
    try:
        stream = await jet.stream(names.jobs)
    except StreamNotFoundError:
        raise QueueNotFoundError(queue) from None
    counts, oldest = await _counts(jet, stream, names)
    outcomes, now = await ended_jobs(jet, queue), jet.runtime.clock.now()
    pauses = await _pauses(jet, names)
    return QueueSummary(
        name=queue,
        exclusive=stream.config.metadata.get(QUEUE_MARK) == "true",
        lease=float(stream.config.metadata.get(_LEASE, 0)),
        pending=counts.pending,
        held=counts.held,
        held_for=counts.held_for,
        running=counts.running,
        retrying=counts.retrying,
        scheduled=counts.scheduled,
        expired=counts.expired,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
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
    orders, seq = Orders(), 1
    with suppress(StreamNotFoundError, MessageNotFoundError):
        stream = await jet.stream(names.control)
        while True:
            stored = await stream.get_next_message(names.order_subject("pause.>"), seq)
            seq = stored.seq + 1
            # One that cannot be read is of a newer version.
            with suppress(*UNREADABLE):
                orders.heed(_order(stored.data))
    return orders


async def _counts(jet: Jet, stream: Stream, names: QueueNames) -> tuple[JobCounts, int]:
    """Return the counts of the jobs, and when the oldest that is due was enqueued, or fell due again; 0 for none."""
    if not is_embedded(jet):
        queue = await jet.queue(names.queue, create=False)
        return await queue.counts(), await queue.oldest_at()
    infos = await consumer_infos(jet, names.jobs)
    underway = await _underway(jet, names)
    where = await _states(jet, names)
    states = Counter(where.of(seq, one) for seq, one in underway.items())
    # Before the first worker, there is no consumer, and every job is pending.
    untouched = await _untouched(stream, names, infos) if infos else (await stream.info()).state.messages
    total = await _messages_in(jet, names.history)
    failed, cancelled, expired = await _endings(jet, names) if total else (0, 0, 0)
    counts = JobCounts(
        pending=untouched + states["pending"],
        held=states["held"],
        held_for=where.held_for(underway, await limit_names(jet, names)) if states["held"] else {},
        running=states["running"],
        retrying=states["retrying"],
        scheduled=await scheduled_jobs(jet, names) + states["scheduled"],
        completed=total - failed - cancelled - expired,
        failed=failed,
        cancelled=cancelled,
        expired=expired,
    )
    oldest = await oldest_at(jet, names, underway, where)
    return await with_waiting_flow(jet, names, counts), oldest


async def _untouched(stream: Stream, names: QueueNames, infos: Sequence[ConsumerInfo]) -> int:
    """Return how many jobs were never taken; tenants may have some before they have a consumer."""
    tenants = [info for info in infos if names.is_tenant_consumer(info.name)]
    stored = sum(sum(counts.values()) for counts in (await tenants_with_jobs(stream, names)).values())
    ahead = sum(info.num_pending for info in infos if not names.is_tenant_consumer(info.name))
    return ahead + max(stored - sum(info.num_ack_pending for info in tenants), 0)


async def _endings(jet: Jet, names: QueueNames) -> tuple[int, int, int]:
    """Return how many jobs in the history have failed, were cancelled, and expired: there may be millions of each."""
    prefixes = [names.ending_subject(ending, "") for ending in _NOT_COMPLETED]
    try:
        async with jet.read() as view:
            ((stream, upto),) = await view.sql(_HISTORY, [names.history])
            # "/" is the character after the dot.
            bounds = [{"stream": stream, "upto": upto, "low": text, "high": text[:-1] + "/"} for text in prefixes]
            found = [await view.sql(_ENDED.format(f"m_{stream}"), each) for each in bounds]
    except (ConfigError, StoreBusyError):
        # A store in memory has no snapshots, and one at rest was just opened: ask for the subjects instead.
        history = await jet.stream(names.history)
        infos = [await history.info(subjects_filter=f"{text}*") for text in prefixes]
        return infos[0].total, infos[1].total, infos[2].total
    return found[0][0][0], found[1][0][0], found[2][0][0]


async def _messages_in(jet: Jet, name: str) -> int:
    try:
        return (await jet.backend.call(StreamInfoRequest(name=name))).state.messages
    except StreamNotFoundError:
        return 0


async def _underway(jet: Jet, names: QueueNames) -> dict[int, Unsettled]:
    found: dict[int, Unsettled] = {}
    for info in await consumer_infos(jet, names.jobs):
        offset = 0
        while True:
            request = ConsumerUnsettled(stream=names.jobs, name=info.name, offset=offset)
            page = await jet.backend.call(request)
            found.update((entry.seq, entry) for entry in page.messages)
            offset += len(page.messages)
            if not page.messages or offset >= page.total:
                break
    return found


async def _states(jet: Jet, names: QueueNames) -> JobStates:
    return await job_states(jet, names, BegunJobs(jet, names, 0.0, await jet.backend.begun_deliveries(names.jobs)))


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
            found[state] = (await (await jet.stream(stream)).info(subjects_filter=subjects)).total
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
