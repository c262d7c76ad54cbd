"""Queues: their jobs and dead letters, what ended last, their limits and their flows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple, cast

import msgspec

from pelton.api import (
    ApiError,
    ConfigError,
    CorruptMessageError,
    FlowNotFoundError,
    JobNotFoundError,
    MessageNotFoundError,
    QueueNotFoundError,
    StoredMessage,
    StreamInfoRequest,
    StreamNotFoundError,
    StreamState,
    rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.requests import FindMessages
from pelton.api.times import SECOND
from pelton.connect import Jet
from pelton.jet import Stream, Streams
from pelton.observe.queue_moment import queues_now
from pelton.observe.summaries import LimitSummary, QueueSummary, TimeSpread, WorkerSummary
from pelton.queue import (
    DeadLetter,
    FlowInfo,
    JobInfo,
    JobLimit,
    JobSchedule,
    JobState,
    Outcome,
    TenantCounts,
    WorkerInfo,
)
from pelton.queue.builder import FlowBegin, FlowRecord, FlowState, decode_event, decode_flow_record
from pelton.queue.model.limits import Orders, SlotRecord, decode
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import checked_id
from pelton.queue.queue import Queue, look_at_queue
from pelton.queue.scan import number_of_subjects, orders_in
from pelton.queue.views import JobViews
from pelton.runtime import Deadline, WallOffset, wall_ahead

_SAMPLE: Final = 100
_MINUTE_NS: Final = 60 * SECOND
_outcome: Final = msgspec.json.Decoder(Outcome).decode
_worker: Final = msgspec.json.Decoder(WorkerInfo).decode
_MOST_WORKERS: Final = 100


async def _last_messages(jet: Streams, stream: Stream, state: StreamState, count: int) -> list[StoredMessage]:
    """Return the newest messages of a stream, at most ``count``, oldest first."""
    if not state.num_deleted:
        begin = max(state.last_seq - count + 1, state.first_seq, 1)
        request = FindMessages(stream=stream.config.name, begin=begin, limit=count)
        return [*(await jet.backend.call(request)).messages] if state.messages else []
    found: list[StoredMessage] = []
    seq = state.last_seq
    while len(found) < count and seq >= state.first_seq > 0:
        try:
            found.append(await stream.get_message(seq))
        except (MessageNotFoundError, CorruptMessageError):
            if state.num_deleted > count:
                # Too many gaps to go back one by one.
                break
        seq -= 1
    return found[::-1]


async def newest_messages(
    stream: Stream, filter: str, state: StreamState, window: int
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages of a filter, the newest first, as of a ``state`` of the stream.

    Messages can be read only forwards, so it reads windows: the last ``window`` sequences, then twice as many before.
    """
    try:
        last = await stream.get_last_message(filter)
    except MessageNotFoundError:
        return
    first, end = max(state.first_seq, 1), state.last_seq + 1
    if last.seq < end:
        yield last
        end = last.seq
    while end > first:
        begin = max(end - window, first)
        seen, seq = list[StoredMessage](), begin
        with suppress(MessageNotFoundError):
            while seq < end and (stored := await stream.get_next_message(filter, seq)).seq < end:
                seen.append(stored)
                seq = stored.seq + 1
        for stored in reversed(seen):
            yield stored
        window, end = window * 2, begin


class EndedJobs(NamedTuple):
    """The outcomes of the jobs that ended last, the oldest first, and how many end in a minute."""

    outcomes: list[Outcome]
    per_minute: float


async def ended_jobs(jet: Streams, queue: str, count: int = _SAMPLE) -> list[Outcome]:
    """Return the outcomes of the jobs that ended last, at most ``count``, the oldest first."""
    history = await _history(jet, queue)
    if history is None:
        return []
    return [_outcome(message.data) for message in await _last_messages(jet, *history, count)]


async def _history(jet: Streams, queue: str) -> tuple[Stream, StreamState] | None:
    try:
        info = await jet.backend.call(StreamInfoRequest(name=QueueNames(queue).history))
    except StreamNotFoundError:
        return None
    return Stream(jet.backend, info.config, jet.runtime), info.state


async def _sample(jet: Streams, queue: str, now: int) -> EndedJobs:
    history = await _history(jet, queue)
    if history is None:
        return EndedJobs([], 0.0)
    stream, state = history
    last = await _last_messages(jet, stream, state, _SAMPLE)
    begin = now - _MINUTE_NS
    recent = [message for message in last if message.time_ns >= begin]
    number, span = len(recent), _MINUTE_NS
    if number == len(last) >= _SAMPLE and last[0].seq > state.first_seq:
        # All of the sample is recent: the sequences tell how many more there are.
        first = await _first_since(stream, begin, state.first_seq, last[0].seq)
        number = state.last_seq - first.seq + 1
        if first.seq == state.first_seq > 1:
            # What ended before has been removed already.
            span = max(now - first.time_ns, SECOND)
    return EndedJobs([_outcome(message.data) for message in last], number * _MINUTE_NS / span)


async def _first_since(stream: Stream, time: int, low: int, high: int) -> StoredMessage:
    """Return the first message that was not stored before a time; the one at ``high`` was not."""
    found = await stream.get_message(high)
    while low < high:
        middle = (low + high) // 2
        stored = await stream.get_next_message(">", middle)
        if stored.seq < high and stored.time_ns < time:
            low = stored.seq + 1
        else:
            high = middle
            found = stored if stored.time_ns >= time and stored.seq < found.seq else found
    return found


def spread(nanoseconds: Sequence[int]) -> TimeSpread:
    """Return how durations are spread."""
    if not nanoseconds:
        return TimeSpread()
    ordered = sorted(max(one, 0) / SECOND for one in nanoseconds)
    last = len(ordered) - 1
    return TimeSpread(median=ordered[last // 2], p95=ordered[round(last * 0.95)], longest=ordered[last])


def run_times(outcomes: Sequence[Outcome]) -> TimeSpread:
    """Return how the run times of jobs are spread; those that never started have none."""
    return spread([one.finished_at - one.started_at for one in outcomes if one.started_at])


async def worker_summaries(jet: Jet, queue: str) -> list[WorkerSummary]:
    """Return the present workers, and the workers of the jobs that ended last, by name."""
    outcomes = await ended_jobs(jet, queue)
    live = {one.name: one for one in await workers_present(jet, queue)}
    return [
        _summary_of_worker(queue, name, [one for one in outcomes if one.worker == name], live.get(name))
        for name in sorted({one.worker for one in outcomes} | set(live))
    ]


def _summary_of_worker(queue: str, name: str, ended: Sequence[Outcome], live: WorkerInfo | None) -> WorkerSummary:
    last = max(ended, key=lambda one: one.finished_at, default=None)
    summary = WorkerSummary(
        queue=queue,
        worker=name,
        ended=len(ended),
        failed=sum(one.state == "failed" for one in ended),
        last_job="" if last is None else last.job,
        last_ended_at="" if last is None else rfc3339(last.finished_at),
    )
    if live is None:
        return summary
    return msgspec.structs.replace(
        summary,
        host=live.host,
        pid=live.pid,
        seen_at=rfc3339(live.seen_at),
        running=live.running,
        oldest_running=live.oldest_running,
        stopping=live.stopping,
        memory=live.memory,
    )


async def workers_present(jet: Jet, queue: str) -> list[WorkerInfo]:
    """Return the workers of a queue as of each one's last heartbeat, at most the first hundred by name.

    Reads without a consumer, so also from a snapshot.
    """
    names = QueueNames(queue)
    try:
        info = await jet.backend.call(StreamInfoRequest(name=names.running, subjects_filter=names.worker_subject("*")))
    except StreamNotFoundError:
        return []
    stream, found = Stream(jet.backend, info.config, jet.runtime), list[WorkerInfo]()
    for subject in sorted(info.state.subjects or ())[:_MOST_WORKERS]:
        # A worker that has left meanwhile, or that runs another version.
        with suppress(MessageNotFoundError, CorruptMessageError, *UNREADABLE):
            found.append(_worker((await stream.get_last_message(subject)).data))
    return found


# --- queues, their jobs and their dead letters

_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_UNREADABLE: Final = (ConfigError, ApiError, CorruptMessageError, *UNREADABLE)


async def queue_looked_at(jet: Jet, queue: str) -> Queue:
    """Return a queue whose views and verbs are wanted, and of which nothing is made: what a file's exclusive queue has
    cannot be made through a server.

    Raises QueueNotFoundError, ConfigError.
    """
    return Queue(jet, await look_at_queue(jet, QueueNames(queue)))


async def queue_summaries(jet: Jet, *, limit: int | None = None) -> list[QueueSummary]:
    """Return all queues by name, or the first ``limit``; one that cannot be looked at has its ``error`` alone."""
    found, names, of_all = list[QueueSummary](), await jet.queue_names(), None
    # Of the first few, the streams of the others are not asked; nor if one of them cannot be read.
    if limit is None or limit >= len(names):
        with suppress(*_UNREADABLE):
            of_all = await queues_now(jet)
    for name in names[:limit]:
        try:
            found.append(await _summary(of_all or await queues_now(jet, name), name))
        except (QueueNotFoundError, StreamNotFoundError):
            # It was removed meanwhile.
            continue
        except _UNREADABLE as error:
            found.append(QueueSummary(name=name, error=str(error)))
    return found


async def queue_summary(jet: Jet, queue: str) -> QueueSummary:
    """Return one queue. Raises QueueNotFoundError, ConfigError for an impossible name."""
    return await _summary(await queues_now(jet, queue), queue)


async def _summary(jet: Streams, queue: str) -> QueueSummary:
    names = QueueNames(queue)
    context = await look_at_queue(jet, names)
    counts, oldest = await JobViews(context).counts_and_oldest()
    outcomes, per_minute = await _sample(jet, queue, jet.runtime.clock.now())
    pauses = await pauses_of(jet, names)
    return QueueSummary(
        name=queue,
        exclusive=context.exclusive,
        lease=context.lease,
        **msgspec.structs.asdict(counts),
        dead_letters=await _messages_in(jet, names.dead),
        oldest_at=rfc3339(oldest) if oldest else "",
        last_ended_at=rfc3339(outcomes[-1].finished_at) if outcomes else "",
        per_minute=per_minute,
        wait=spread([one.started_at - one.enqueued_at for one in outcomes if one.started_at]),
        run=run_times(outcomes),
        paused=pauses.is_all_paused,
        paused_keys=pauses.paused_keys,
        paused_jobs=pauses.paused_jobs,
    )


async def pauses_of(jet: Streams, names: QueueNames) -> Orders:
    """Return what is paused of a queue."""
    orders = Orders()
    with suppress(StreamNotFoundError):
        for order in await orders_in(await jet.stream(names.control), names.order_subject("pause.>")):
            orders.heed(order)
    return orders


async def _messages_in(jet: Streams, name: str) -> int:
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

    Only jobs of a state, a key, a name or a tenant, if given. Raises QueueNotFoundError, ConfigError.
    """
    jobs = (await queue_looked_at(jet, queue)).jobs(state=state, key=key, job=job, tenant=tenant)
    async with aclosing(cast(AsyncGenerator[JobInfo, None], jobs)) as found:
        async for info in found:
            yield info


async def job_details(jet: Jet, queue: str, job_id: str) -> JobInfo:
    """Return one job, in whatever state it is. Raises JobNotFoundError, QueueNotFoundError."""
    opened = await queue_looked_at(jet, queue)
    try:
        return await opened.get(job_id)
    except ConfigError:
        raise JobNotFoundError(queue, job_id, "this is no id, which is a number such as '7'") from None


async def job_schedules(jet: Jet, queue: str) -> list[JobSchedule]:
    """Return the schedules of a queue, by name. Raises QueueNotFoundError, ConfigError."""
    return await (await queue_looked_at(jet, queue)).schedules()


async def tenant_counts(jet: Jet, queue: str, limit: int = 25) -> list[TenantCounts]:
    """Return the tenants with the most jobs, at most ``limit``. Raises QueueNotFoundError, ConfigError."""
    return await (await queue_looked_at(jet, queue)).tenants(limit)


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
    """Iterate over the failed jobs that can be redriven, oldest first; only jobs of a key or a name, if given.

    Raises QueueNotFoundError, ConfigError.
    """
    letters = (await queue_looked_at(jet, queue)).dead_letters(key=key, job=job)
    async with aclosing(cast(AsyncGenerator[DeadLetter, None], letters)) as found:
        async for letter in found:
            yield letter


# --- limits of a queue, and how much of each is in use

_MOST_KEYS: Final = 200


async def limit_summaries(jet: Jet, queue: str) -> list[LimitSummary]:
    """Return the limits of a queue, in the order in which they were set. Raises QueueNotFoundError.

    Of a limit for each key, the first 200 keys that hold slots are counted.
    """
    names, opened = QueueNames(queue), await queue_looked_at(jet, queue)
    limits = await opened.limits()
    if not limits:
        return []
    stream = await jet.stream(names.running)
    return [await _summary_of_limit(jet, stream, names, limit) for limit in limits]


async def _summary_of_limit(jet: Jet, stream: Stream, names: QueueNames, limit: JobLimit) -> LimitSummary:
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
        per=0.0 if rate is None else float(rate.per),  # type: ignore[arg-type]  # a limit that was read has seconds
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


# --- flows of a queue: the newest ones, and one with its jobs

_FIRST_WINDOW: Final = 256
_LOOK_FOR_S: Final = 1.0


async def flow_summaries(
    jet: Jet,
    queue: str,
    *,
    state: FlowState | None = None,
    since: int = 0,
    limit: int = 50,
    within: float = _LOOK_FOR_S,
) -> list[FlowInfo]:
    """Return flows without their jobs, those that began last first; at most ``limit``, of a ``state`` if given.

    ``since`` (ns) leaves out those that began earlier. Looks back for ``within`` seconds at most, so of a queue with
    very many flows old ones may be left out.
    """
    names = QueueNames(queue)
    try:
        info = await jet.backend.call(StreamInfoRequest(name=names.flows))
    except StreamNotFoundError:
        return []
    stream, found = Stream(jet.backend, info.config, jet.runtime), list[FlowInfo]()
    async with aclosing(newest_messages(stream, names.flow_begin("*"), info.state, _FIRST_WINDOW)) as messages:
        deadline = Deadline(jet.runtime.clock, within)
        async for stored in messages:
            if stored.time_ns < since:
                break
            flow = await _flow(stream, names, stored)
            if state in (None, flow.state):
                found.append(flow)
            if len(found) >= limit or deadline.is_over:
                break
    return found


async def _flow(stream: Stream, names: QueueNames, stored: StoredMessage) -> FlowInfo:
    begin = decode_event(stored.data)
    assert isinstance(begin, FlowBegin), "nothing else is stored there"
    flow_id = names.flow_of(stored.subject)
    try:
        record = decode_flow_record((await stream.get_last_message(names.flow_state(flow_id))).data)
    except MessageNotFoundError:
        record = FlowRecord(state="running", upto=0)
    is_over = record.state != "running"
    return FlowInfo(
        id=flow_id,
        name=begin.name,
        state=record.state,
        size=begin.size,
        enqueued_at=stored.time_ns,
        finished_at=record.at if is_over else 0,
        error=record.error if is_over else "",
    )


async def flow_details(jet: Jet, queue: str, flow_id: str) -> FlowInfo:
    """Return a flow with all its jobs. Raises FlowNotFoundError, QueueNotFoundError."""
    opened = await queue_looked_at(jet, queue)
    if not (flow_id.isascii() and flow_id.isalnum()):
        raise FlowNotFoundError(queue, flow_id)
    return await opened.flow(flow_id).status()
