"""Reading what a queue has stored: its streams to their present end, unfinished jobs, what is under way or has begun.

**Which jobs have begun: their functions were called, which is what counts as an attempt.** A delivery only tells that a
worker has taken a job. What the worker has begun must be known when it dies, and must cost little. In a store file it
is a mark in memory that outlives the process (``storage/wake.py``). On a cluster each worker has one record, the
list of the deliveries that it has begun, and a job begins when the record that lists it is stored; those that begin
while one is being written share the next one. What has ended leaves the list when it is written again: until then it
says nothing new, because the job's own record counts that delivery already. A worker that has lost a lease keeps the
delivery listed, for the worker that takes the job next.

**How a queue went: a point for each minute of the last day, written by its workers while they tell of themselves.**
Servers, and dashboards that may write, do it as well: just when no worker is there, somebody wants to know. The points
of an hour are one message, and a day has 25 places for them, which are written over: so they take the same space
for ever, are there before anybody looks, and go if the queue has no worker for a day. The first worker that tells
something in a new minute writes; the others find it done. Ended jobs and dead letters are counters, of which the
differences tell; the rest is as of the point.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    AckRejectedError,
    Backend,
    ConfigError,
    ConsumerInfo,
    ConsumerNotFoundError,
    ConsumerUnsettled,
    CorruptMessageError,
    Delivered,
    MessageNotFoundError,
    PeltonError,
    StoreClosedError,
    StoredMessage,
    StoreReadOnlyError,
    StreamInfoRequest,
    StreamNotFoundError,
    Unsettled,
    UnsettledGroup,
    UnsettledGroups,
    headers,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.times import SECOND
from pelton.jet import Stream, Streams
from pelton.jet.backlogs import MINUTE, note_backlogs
from pelton.jet.consumer import pages_of
from pelton.jet.stream import at_leader, last_of, last_of_each, message_at, next_of, subjects_of
from pelton.queue.job_message import found_by
from pelton.queue.model.limits import Order, decode_order
from pelton.queue.model.naming import FLOWS_CONSUMER, QueueNames
from pelton.queue.model.records import accounted_for, job_id_in, job_id_of, with_losses
from pelton.queue.model.states import Attempt, JobCounts, LastRun, Outcome, decode_outcome
from pelton.queue.registry import ALL_LISTED, UnderwayCounts, UnderwayPart, Unlisted
from pelton.queue.setup import queue_names

if TYPE_CHECKING:
    from pelton.api.backend import BegunDeliveries
    from pelton.jet import Consumer
    from pelton.queue.model.records import Ended
    from pelton.queue.registry import Begun, QueueContext, Underway


_HOURS: Final = 25
_SAMPLE: Final = 40
_MOST_QUEUES: Final = 200
_SPREAD_S: Final = 10.0
_log: Final = logging.getLogger("pelton.queue")


class TrendPoint(msgspec.Struct, frozen=True, array_like=True):
    """A queue at the end of a ``minute`` since 1970; durations in seconds, of at most 40 jobs that ended in it."""

    minute: int
    ended: int
    """How many jobs have ever ended."""
    dead: int
    """How many have ever become dead letters."""
    depth: int
    """How many are due, and have not ended."""
    wait: float = 0.0
    """From enqueue to the start of the last attempt: the median."""
    wait_p95: float = 0.0
    run: float = 0.0
    """From the start to the end of the last attempt: the median."""
    run_p95: float = 0.0


_encode: Final = msgspec.json.Encoder().encode
_decode_points: Final = msgspec.json.Decoder(list[TrendPoint]).decode


async def keep_trends(jet: Streams) -> None:
    """Write every minute how the consumers and the first queues of a store went, until it is closed."""
    clock = jet.runtime.clock
    while True:
        # Of several processes, the others find it done.
        await clock.sleep((MINUTE - clock.now() % MINUTE) / SECOND + jet.runtime.random.uniform(0, _SPREAD_S))
        try:
            await note_backlogs(jet)
            for name in (await queue_names(jet))[:_MOST_QUEUES]:
                # Another one may have written it, or the queue is broken.
                with suppress(PeltonError):
                    await note_trend(jet, QueueNames(name))
        except StoreClosedError:
            return
        except PeltonError as error:
            _log.debug("how the store went is not written: %s", error)


async def note_trend(jet: Streams, names: QueueNames) -> None:
    """Write the point of the minute that has just ended, unless it is there. Raises PeltonError."""
    minute = jet.runtime.clock.now() // MINUTE - 1
    stream = await jet.stream(names.running)
    subject = names.trend_subject(minute // 60 % _HOURS)
    before = await last_of(stream, subject)
    hour = [one for one in _points_of(before) if one.minute // 60 == minute // 60]
    if hour and minute <= hour[-1].minute <= minute + 1:
        return
    # Later ones are of a clock that went back.
    hour = [one for one in hour if one.minute < minute]
    hour.append(await _point(jet, names, minute))
    # Of two workers that have found nothing, one is refused.
    seen = "0" if before is None else str(before.seq)
    head = headers.encode({headers.TTL: f"{_HOURS}h", headers.EXPECTED_LAST_SUBJECT_SEQUENCE: seen})
    await jet.backend.publish(subject, _encode(hour), head)


async def trend_points(jet: Streams, queue: str, since: int) -> list[TrendPoint]:
    """Return the points of a queue from a time on, in wall nanoseconds of the last day, oldest first."""
    names, first, last = QueueNames(queue), since // MINUTE, jet.runtime.clock.now() // MINUTE
    try:
        stream = await jet.stream(names.running)
    except StreamNotFoundError:
        return []
    found: list[TrendPoint] = []
    for hour in range(max(first // 60, last // 60 - _HOURS + 1), last // 60 + 1):
        with suppress(CorruptMessageError):
            found += _points_of(await last_of(stream, names.trend_subject(hour % _HOURS)))
    return sorted((one for one in found if first <= one.minute <= last), key=lambda one: one.minute)


def _points_of(stored: StoredMessage | None) -> list[TrendPoint]:
    if stored is not None:
        # What another version has written is written over.
        with suppress(*UNREADABLE):
            return _decode_points(stored.data)
    return []


async def _point(jet: Streams, names: QueueNames, minute: int) -> TrendPoint:
    ended, dead, jobs = [await _counts(jet, name) for name in (names.history, names.dead, names.jobs)]
    outcomes = await _ended_in(await jet.stream(names.history), ended[0], minute)
    waits = [one.started_at - one.enqueued_at for one in outcomes if one.started_at]
    runs = [one.finished_at - one.started_at for one in outcomes if one.started_at]
    depth = jobs[1] - await not_to_be_taken(jet, names)
    return TrendPoint(minute, ended[0], dead[0], max(depth, 0), *_middle_and_p95(waits), *_middle_and_p95(runs))


async def _counts(jet: Streams, name: str) -> tuple[int, int]:
    """Return the last sequence of a stream, and how many messages it has."""
    state = (await jet.backend.call(StreamInfoRequest(name=name))).state
    return state.last_seq, state.messages


async def _ended_in(history: Stream, last_seq: int, minute: int) -> list[Outcome]:
    found: list[Outcome] = []
    for seq in range(last_seq, max(last_seq - _SAMPLE, 0), -1):
        try:
            outcome = decode_outcome((await history.get_message(seq)).data)
        except (MessageNotFoundError, CorruptMessageError, *UNREADABLE):
            continue
        if outcome.finished_at // MINUTE < minute:
            break
        found.append(outcome)
    return found


def _middle_and_p95(nanoseconds: Sequence[int]) -> tuple[float, float]:
    ordered = sorted(round(max(one, 0) / SECOND, 4) for one in nanoseconds) or [0.0]
    last = len(ordered) - 1
    return ordered[last // 2], ordered[round(last * 0.95)]


_PAGE: Final = 256
_FIRST: Final = 4
_AT_ONCE: Final = 64
_BEYOND: Final = 2**40


async def number_of_subjects(stream: Stream, filter_subject: str) -> int:
    """Return how many subjects with messages match, without a list of them: there may be millions."""
    return (await stream.info(subjects_filter=filter_subject, offset=_BEYOND)).total


async def deliveries(stream: Stream, *filters: str, upto: int = 0) -> AsyncGenerator[Delivered | StoredMessage, None]:
    """Read a stream from its beginning to its present end: with an ephemeral consumer, if one can be made.

    ``upto``: to that sequence, which is stored; a replica that is behind is waited for.
    """
    wanted: dict[str, Any] = {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}
    try:
        consumer = await stream.create_consumer(ack_policy="none", **wanted)
    except StoreReadOnlyError:
        async with aclosing(messages_of_filters(stream, [each or ">" for each in filters])) as found_one_by_one:
            async for stored in found_one_by_one:
                if upto and stored.seq > upto:
                    return
                yield stored
        return
    try:
        async with aclosing(pages_of(consumer, upto)) as found:
            async for page in found:
                for message in page:
                    if not upto or message.delivered.seq <= upto:
                        yield message.delivered
    finally:
        with suppress(ConsumerNotFoundError):
            await consumer.delete()


async def last_messages(
    backend: Backend, stream: Stream, filter_subject: str
) -> list[tuple[Delivered | StoredMessage, int]]:
    """Return the last message of each subject, by sequence, and by how much the store's clock has jumped since.

    Of a stream that keeps no others. In a store file, to make a consumer and to remove it would be written and synced.
    """
    # What is damaged is found, and reported, by a consumer; and a server lists none.
    with suppress(CorruptMessageError, ConfigError):
        return [*await last_of_each(backend, stream.name, filter_subject)]
    while True:
        # A server forgets a consumer whose client was not heard for seconds.
        with suppress(ConsumerNotFoundError):
            async with aclosing(deliveries(stream, filter_subject)) as found:
                return [(one, one.jumped_ns if isinstance(one, Delivered) else 0) async for one in found]


async def stored_messages(stream: Stream, filter_subject: str, seq: int = 1) -> AsyncGenerator[StoredMessage]:
    """Read a stream from a sequence to its present end, without a consumer; some messages at a time, at last many."""
    is_direct = stream.config.allow_direct
    # Where each message is a question, the first one is asked whether there is any.
    read, number = (_page, _FIRST) if is_direct else (_side_by_side, 1)
    while page := await read(stream, filter_subject, seq, number):
        for stored in page:
            yield stored
        seq, number = page[-1].seq + 1, min(_FIRST * number, _PAGE)


async def orders_in(stream: Stream, filter_subject: str) -> list[Order]:
    """Return the orders of a filter that hold, or were taken back a moment ago, in the order of their sequences."""
    found: list[Order] = []
    async with aclosing(stored_messages(stream, filter_subject)) as stored:
        async for one in stored:
            # One that cannot be read is of a newer version.
            with suppress(*UNREADABLE):
                found.append(decode_order(one.data))
    return found


async def _page(stream: Stream, filter_subject: str, seq: int, number: int) -> Sequence[StoredMessage]:
    return await stream.get_messages(number, seq=seq, subject=filter_subject)


async def _side_by_side(stream: Stream, filter_subject: str, seq: int, number: int) -> Sequence[StoredMessage]:
    """Ask at several sequences at once, for where messages are dense, these are as many messages."""
    asked = range(seq, seq + min(number, _AT_ONCE))
    answers = await asyncio.gather(*(next_of(stream, filter_subject, each) for each in asked))
    found = {stored.seq: stored for stored in answers if stored is not None}
    return [found[each] for each in sorted(found)]


async def messages_of_filters(
    stream: Stream, filters: Sequence[str], after: Mapping[str, int] = MappingProxyType({})
) -> AsyncGenerator[StoredMessage]:
    """Read what matches any of some filters, none of which overlap, ``after`` a sequence of some, in their order."""
    heads: list[tuple[int, int, StoredMessage]] = []
    async with AsyncExitStack() as reads:
        sources = [
            await reads.enter_async_context(aclosing(stored_messages(stream, each, after.get(each, 0) + 1)))
            for each in filters
        ]
        waiting = list(range(len(sources)))
        while True:
            for number in waiting:
                stored = await anext(sources[number], None)
                if stored is not None:
                    heappush(heads, (stored.seq, number, stored))
            if not heads:
                return
            _, number, stored = heappop(heads)
            yield stored
            waiting = [number]


# --- jobs that have not ended, in the stream of a queue's jobs: also scheduled ones, which no worker takes from there


async def scheduled_jobs(jet: Streams, names: QueueNames) -> int:
    """Return how many jobs wait for their time."""
    return await number_of_subjects(await jet.stream(names.jobs), names.scheduled)


async def not_to_be_taken(jet: Streams, names: QueueNames) -> int:
    """Return how many messages no worker takes: scheduled jobs, schedules and kept places."""
    stream = await jet.stream(names.jobs)
    others = [await number_of_subjects(stream, subject) for subject in (names.crons, names.kept)]
    return await scheduled_jobs(jet, names) + sum(others)


async def tenants_with_jobs(stream: Stream, names: QueueNames) -> dict[int, dict[str, int]]:
    """Return how many jobs, due and not ended, each tenant has, by their priority: by its token."""
    counts: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for subject, count in (await subjects_of(stream, names.tenant_jobs)).items():
        tenant, of_rank = names.tenant_of(subject), counts[names.rank_of_tenant(subject)]
        of_rank[tenant] = of_rank.get(tenant, 0) + count
    return counts


async def with_waiting_flow(jet: Streams, names: QueueNames, counts: JobCounts) -> JobCounts:
    """Return counts that show a flow that is all that waits for a worker: its next job is not enqueued before."""
    if counts.unfinished or not await _flow_waits(jet, names):
        return counts
    return msgspec.structs.replace(counts, pending=1)


async def _flow_waits(jet: Streams, names: QueueNames) -> bool:
    try:
        stream = await jet.stream(names.flows)
    except StreamNotFoundError:
        return False
    try:
        found = await (await stream.consumer(FLOWS_CONSUMER)).info()
    except ConsumerNotFoundError:
        # No worker has looked yet.
        return (await stream.info()).state.messages > 0
    return found.num_pending + found.num_ack_pending > 0


async def unfinished_job(stream: Stream, names: QueueNames, job_id: str) -> StoredMessage | None:
    if job_id.isdigit():
        return await message_at(stream, int(job_id))
    leaf, key = found_by(job_id)
    # A job can fall due between the two, but never goes back.
    for subject in (names.later(key, leaf), *names.places(key, leaf)):
        if (stored := await _one_of(stream, subject, job_id)) is not None:
            return stored
    return None


async def job_at(stream: Stream, names: QueueNames, leaf: str, key: str) -> StoredMessage | None:
    """Return the message of a job that has not ended, by its place: there is one at most."""
    for subject in (names.later(key, leaf), *names.places(key, leaf)):
        if (stored := await last_of(stream, subject)) is not None:
            return stored
    return None


async def _one_of(stream: Stream, subject: str, job_id: str) -> StoredMessage | None:
    """Return the message of a job among those of its subject: of jobs that are unique until started, several run."""
    seq = 1
    while (stored := await next_of(stream, subject, seq)) is not None:
        if job_id_in(stored.data, stored.seq) == job_id:
            return stored
        seq = stored.seq + 1
    return None


_attempt: Final = msgspec.json.Decoder(Attempt).decode


async def last_attempt(stream: Stream, names: QueueNames, job_id: str) -> Attempt | None:
    """Return the record of a job's last attempt that did not end it, from the stream of attempts, or None."""
    stored = await last_of(stream, names.attempt_subject(job_id))
    return None if stored is None else _attempt(stored.data)


# --- whether a job of a schedule became due while an earlier one had not ended

# A run that has ended so much later than now was recorded by a clock that has been corrected since.
_CLOCKS_DIFFER_NS: Final = 2_000_000_000
_decode: Final = msgspec.json.Decoder(LastRun).decode


async def has_overlap(queue: QueueContext, delivered: Delivered) -> bool:
    """Whether an earlier job of the same schedule is there, or has ended after this one was stored."""
    jet, names = queue.jet, queue.names
    jobs, leaf = await jet.stream(names.jobs), names.leaf_of(delivered.subject)
    for subject in _places(names, delivered.subject, leaf):
        # A replica that does not have it yet has no earlier one either.
        if (first := await next_of(jobs, subject, 1)) is not None and first.seq < delivered.seq:
            return True
    # In this order: the job is removed with, or after, the note that it has ended.
    ran = await last_of(await jet.stream(names.control), names.last_run(leaf))
    if ran is None or ran.time_ns > queue.time.now() + _CLOCKS_DIFFER_NS:
        return False
    return ran.time_ns > delivered.time_ns and int(_decode(ran.data).id) < delivered.seq


def _places(names: QueueNames, subject: str, leaf: str) -> tuple[str, ...]:
    """Return where earlier jobs may be: their schedule may have had another priority, or no tenant."""
    if not names.is_free(subject):
        return names.places(names.key_of_job(subject), leaf)
    tenant = names.tenant_of(subject) if names.has_tenant(subject) else ""
    return (*names.places("", leaf), *(names.places(tenant, leaf) if tenant else ()))


async def refusal_of(backend: Backend, names: QueueNames, ended: Ended) -> AckRejectedError | None:
    """Return why an attempt has no effect whose outcome was refused; None if that very outcome is stored.

    It is when a publish was repeated: a server checks the condition before it knows the message again.
    """
    record = ended.messages[-1]
    job_id = record.subject.rpartition(".")[2]
    stored = await at_leader(backend, names.history, last_by_subj=names.outcomes_of(job_id))
    if stored is not None and (stored.subject, stored.data) == (record.subject, record.data):
        return None
    delivered = ended.delivered
    reason = "the job was cancelled meanwhile"
    return AckRejectedError(delivered.stream, delivered.consumer, delivered.seq, reason)


# --- the jobs under way in a queue, for its views: which are held or wait for a retry, and how many are neither


async def tenant_consumers(stream: Stream, names: QueueNames) -> list[Consumer]:
    """Return the consumers that there are for tenants' jobs; they come and go."""
    found: list[Consumer] = []
    for name in await stream.consumer_names():
        if names.is_tenant_consumer(name):
            with suppress(ConsumerNotFoundError):
                found.append(await stream.consumer(name))
    return found


async def _info(consumer: Consumer) -> ConsumerInfo | None:
    try:
        return await consumer.info()
    except ConsumerNotFoundError:
        return None


async def infos_of(consumers: Sequence[Consumer]) -> list[ConsumerInfo]:
    """Return what there is to know of consumers; one that is gone is left out."""
    return [info for consumer in consumers if (info := await _info(consumer)) is not None]


async def taken_of_tenant(stream: Stream, names: QueueNames, tenant: str, priority: int) -> int:
    """Return how many jobs of a tenant and a priority were taken and have not ended; the tenant as a token."""
    try:
        return (await (await stream.consumer(names.tenant_consumer(tenant, priority))).info()).num_ack_pending
    except ConsumerNotFoundError:
        return 0


async def delivered_by(stream: Stream, names: QueueNames, consumers: Sequence[Consumer]) -> Unlisted:
    """Return what the consumers of jobs without a key have delivered so far; the last is that of ordinary jobs."""
    infos = await infos_of([*consumers, *await tenant_consumers(stream, names)])
    upto = {info.name: info.delivered.stream_seq for info in infos}
    # As ``QueueNames.lane`` names them.
    upto[""] = upto.pop(consumers[-1].name, 0) if consumers else 0
    return Unlisted(upto, sum(info.num_ack_pending for info in infos))


class ConsumerStats:
    """Jobs that consumers deliver."""

    def __init__(self, backend: Backend, names: QueueNames, stream: Stream, consumers: Sequence[Consumer]) -> None:
        self._backend = backend
        self._lists_all: bool = ConsumerUnsettled in backend.planning.own_verbs
        self._names = names
        self._stream = stream
        self._consumers = consumers

    async def underway(self) -> Underway:
        """Return what the consumers have delivered and no worker has settled."""
        found: Underway = {}
        for consumer in await self._consumers_now():
            last, page = 0, await self._of_consumer(consumer, UnderwayPart())
            while page:
                found.update((entry.seq, entry) for entry in page)
                last = page[-1].seq
                page = await self._of_consumer(consumer, UnderwayPart(after=(0, last)))
        return found

    async def count_underway(self) -> UnderwayCounts:
        """Return how many these are, and which of them workers hold."""
        taken: Underway = {}
        groups: list[UnsettledGroup] = []
        passed: dict[str, int] = {}
        for consumer in await self._consumers_now():
            request = UnsettledGroups(stream=consumer.stream_name, name=consumer.name)
            with suppress(ConsumerNotFoundError):
                reply = await self._backend.call(request)
                groups += reply.groups
                taken.update((entry.seq, entry) for entry in reply.taken)
                filters = consumer.config.filter_subjects or (consumer.config.filter_subject,)
                passed.update(dict.fromkeys(filters, reply.passed))
        return UnderwayCounts(taken, groups, passed)

    async def select(self, part: UnderwayPart) -> list[Unsettled]:
        """Return some of these."""
        found: list[Unsettled] = []
        for consumer in await self._consumers_now():
            found += await self._of_consumer(consumer, part)
        found.sort(key=lambda one: (one.due if part.by_due else 0, one.seq), reverse=part.descending)
        return found[: part.limit]

    async def _consumers_now(self) -> list[Consumer]:
        return [*self._consumers, *await tenant_consumers(self._stream, self._names)] if self._lists_all else []

    async def _of_consumer(self, consumer: Consumer, part: UnderwayPart) -> Sequence[Unsettled]:
        request = ConsumerUnsettled(stream=consumer.stream_name, name=consumer.name, **part._asdict())
        with suppress(ConsumerNotFoundError):
            return (await self._backend.call(request)).messages
        return ()

    async def unlisted(self) -> Unlisted:
        """Return nothing in a store file, which lists all; on servers, what consumers have delivered so far."""
        if self._lists_all:
            return ALL_LISTED
        return await delivered_by(self._stream, self._names, self._consumers)

    async def untouched(self, underway: int) -> int:
        """Return how many messages are ahead of the consumers, or wait for one of a tenant."""
        if not self._consumers:
            # An older version made them for the first worker.
            return (await self._stream.info()).state.messages
        ahead = sum([(await consumer.info()).num_pending for consumer in self._consumers])
        tenants = await tenant_consumers(self._stream, self._names)
        taken = sum(info.num_ack_pending for info in await infos_of(tenants))
        listed = await tenants_with_jobs(self._stream, self._names)
        stored = sum(sum(counts.values()) for counts in listed.values())
        return ahead + max(stored - taken, 0)


_decode_begun: Final = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
# What was read serves for this share of a lease: a job is taken anew only a good part of one after it began.
_FRESH_SHARE: Final = 0.1


class BegunJobs:
    """What the workers of a queue have begun, wherever they run. ``marks``: those of a store file.

    ``stream`` holds its jobs; ``lease`` in seconds.
    """

    def __init__(
        self, jet: Streams, names: QueueNames, stream: Stream, lease: float, marks: BegunDeliveries | None
    ) -> None:
        self.jet = jet
        self.names = names
        self.stream = stream
        self.lease = lease
        self.marks = marks
        self._fresh_s = lease * _FRESH_SHARE
        self._found: Begun = {}
        self._asked = float("-inf")

    async def find_begun(self) -> Begun:
        """Return what was begun by now."""
        found: dict[int, set[int]] = {}
        if self.marks is not None:
            found = {seq: set(numbers) for seq, numbers in self.marks.numbers_by_message().items()}
        stream = await self.jet.stream(self.names.running)
        # In a store file there are none, or few: of workers that came through a server.
        read = deliveries if self.marks is None else stored_messages
        async with aclosing(read(stream, self.names.begun_subject("*"))) as records:
            async for record in records:
                for seq, number in _decode_begun(record.data):
                    found.setdefault(seq, set()).add(number)
        return found

    async def complete(self, known: Attempt | None, delivered: Delivered) -> Attempt | None:
        """Return what became of all earlier deliveries of a job; ``known`` is what its attempts have left."""
        if accounted_for(known) >= delivered.num_delivered - 1:
            return known
        clock = self.jet.runtime.clock
        if self.marks is not None or clock.boottime() - self._asked > self._fresh_s:
            asked = clock.boottime()
            self._found, self._asked = await self.find_begun(), asked
        begun = self._found.get(delivered.seq, ())
        return with_losses(known, job_id_of(delivered), delivered.num_delivered, begun, clock.now())
