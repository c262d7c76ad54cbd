"""The jobs of a queue, as its streams and consumers show them.

**In which state the jobs that have not ended are, from what their deliveries and their workers tell.** A delivery tells
only that a job was taken, or given back. Whether it has begun, its worker has noted; that it waits in its worker for a
limit, the worker has told within the last half second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Container, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from pelton.api import (
    ConsumerNotFoundError,
    JobNotFoundError,
    ServerTimeoutError,
    StoredMessage,
    StreamNotFoundError,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.requests import FindMessages
from pelton.jet.stream import last_of, message_at, next_of, subjects_of
from pelton.queue.job_message import place_of
from pelton.queue.model.limits import number_of
from pelton.queue.model.naming import encode_key, key_part
from pelton.queue.model.options import ALL_JOBS, JobFilter, checked_id
from pelton.queue.model.records import (
    accounted_for,
    job_id_in,
    scheduled_for,
    state_by_cause,
    waiting_state,
    with_losses,
)
from pelton.queue.model.states import (
    ENDINGS,
    Ending,
    Envelope,
    JobCounts,
    JobInfo,
    JobProgress,
    JobState,
    Outcome,
    WorkerReport,
    decode_envelope,
    decode_outcome,
    decode_progress,
)
from pelton.queue.registry import UnderwayPart
from pelton.queue.scan import (
    job_at,
    last_attempt,
    messages_of_filters,
    number_of_subjects,
    orders_in,
    scheduled_jobs,
    stored_messages,
    unfinished_job,
    with_waiting_flow,
)
from pelton.runtime import Deadline

if TYPE_CHECKING:
    from pelton.api import Unsettled, UnsettledGroup
    from pelton.jet import Message, Stream
    from pelton.queue.model.limits import JobLimit
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.options import JobOptions
    from pelton.queue.model.states import Attempt
    from pelton.queue.registry import Begun, QueueContext, Underway, UnderwayCounts, Unlisted
    from pelton.runtime import Clock

_LAST_LOOK_S: Final = 0.05


async def first_of(
    stream: Stream, subjects: Sequence[str], clock: Clock, timeout: float | None, after: int = 0
) -> Message | None:
    """Return the first message on any of ``subjects``, stored or to come; None if there is none in time (seconds).

    Only those ``after`` a sequence count.

    On a cluster the consumer lives on one server. If that server is lost, or has forgotten the consumer because its
    client was not heard for seconds, a new one is made, which misses nothing because it reads from the beginning.
    Raises ServerTimeoutError if none can be made.
    """
    deadline = Deadline(clock, timeout)
    start: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1} if after else {}
    while True:
        consumer = await stream.create_consumer(filter_subjects=list(subjects), ack_policy="none", **start)
        left = deadline.left
        try:
            messages = await consumer.fetch(1, timeout=None if left is None else max(left, _LAST_LOOK_S))
        except (ServerTimeoutError, ConsumerNotFoundError):
            continue
        finally:
            with suppress(ConsumerNotFoundError):
                await consumer.delete()
        return messages[0] if messages else None


_worker: Final = msgspec.json.Decoder(WorkerReport).decode
# One that a limit holds, or that no worker knows, is due.
_NOT_DUE: Final = ("scheduled", "waiting", "retrying")
_GIVEN_BACK: Final = (*_NOT_DUE, "held", "stuck")
_MOST_LOOKED_AT: Final = 64


class JobStates:
    """The states as of ``now`` (wall nanoseconds).

    ``workers``: what each worker has told. ``parked``: the jobs that wait in one for a limit, by sequence, each with
    the number of its delivery and the name of the limit. ``runs``: those that run, each with that number, its worker,
    and since when. ``unlisted``: which jobs may have been taken beside those whose deliveries are listed.
    ``attempts`` and ``running``: the streams with what is known of those that were taken.
    """

    def __init__(
        self,
        names: QueueNames,
        begun: Begun,
        workers: Sequence[WorkerReport],
        now: int,
        unlisted: Unlisted,
        attempts: Stream,
        running: Stream,
    ) -> None:
        self.begun: Begun = begun
        self.parked: dict[int, tuple[int, str]] = {
            seq: (number, limit) for worker in workers for seq, number, limit in worker.parked
        }
        self.runs: dict[int, tuple[int, str, int]] = {
            seq: (number, worker.name, at) for worker in workers for seq, number, at in worker.began
        }
        self.unlisted: Unlisted = unlisted
        self.attempts = attempts
        self.running = running
        self._names = names
        self._now = now

    def may_be_taken(self, stored: StoredMessage, delivery: Unsettled | None) -> bool:
        """Whether a worker may have, or have had, a job: then there is more to know of it."""
        seq = stored.seq
        return delivery is not None or seq in self.begun or seq in self.parked or self.is_unlisted(stored)

    def is_unlisted(self, stored: StoredMessage) -> bool:
        """Whether a worker may have, or have had, a job whose deliveries are not listed."""
        if not self.unlisted.number or not self._names.is_free(stored.subject):
            return False
        return self.unlisted.may_have(self._names.lane(stored.subject), stored.seq)

    def is_excluded(self, stored: StoredMessage, delivery: Unsettled | None, wanted: str) -> bool:
        """Whether a job is surely not in the state ``wanted``, without a look at the record of its attempts."""
        if self._names.is_later(stored.subject):
            return wanted != "scheduled"
        may_differ = delivery is None and self.may_be_taken(stored, delivery)
        return not may_differ and self.of(stored.seq, delivery) != wanted

    def of(self, seq: int, delivery: Unsettled | None, known: Attempt | None = None) -> JobState:
        """Return the state of a job; ``known`` is its record, where its deliveries are not listed."""
        if delivery is None:
            accounted = accounted_for(known)
            if any(number > accounted for number in self.begun.get(seq, ())):
                return "running"
            if self.parked.get(seq, (0,))[0] > accounted:
                return "held"
            is_put_off = known is not None and (known.is_stuck or known.retry_at > self._now)
            return waiting_state(known) if is_put_off else "pending"
        if delivery.waits:
            return state_by_cause(delivery.cause, is_due=delivery.due <= self._now)
        if delivery.num_delivered in self.begun.get(seq, ()):
            return "running"
        return "held" if self.parked.get(seq, (0,))[0] == delivery.num_delivered else "pending"

    def due_of(self, delivery: Unsettled | None, known: Attempt | None) -> int:
        """Return until when a job waits that was given back; 0 for one that its worker holds."""
        if delivery is not None:
            return delivery.due if delivery.waits else 0
        return known.retry_at if known is not None and known.retry_at > self._now else 0

    def due_again(self, known: Attempt | None) -> int | None:
        """Return when a job fell due again that was to wait for a time; None if it is not due; 0 for others."""
        if known is None or waiting_state(known) not in _NOT_DUE:
            return 0
        return known.retry_at if known.retry_at <= self._now else None

    def run_of(self, seq: int, delivery: Unsettled | None) -> tuple[str, int]:
        """Return which worker runs a job, and since when, if that was told of this delivery."""
        number, worker, at = self.runs.get(seq, (0, "", 0))
        return ("", 0) if delivery is not None and number != delivery.num_delivered else (worker, at)

    def limit_of(self, seq: int, known: Attempt | None) -> str:
        parked = self.parked.get(seq)
        return parked[1] if parked is not None and parked[0] > accounted_for(known) else known.limit if known else ""

    def complete(self, known: Attempt | None, seq: int, delivery: Unsettled) -> Attempt | None:
        """Return what became of a job's earlier deliveries, also of those that their workers have not ended."""
        deliveries = delivery.num_delivered + delivery.waits
        return with_losses(known, "", deliveries, self.begun.get(seq, ()), self._now)

    def held_for(self, underway: UnderwayCounts, limits: Iterable[str]) -> Counter[str]:
        """Return how many jobs each of the ``limits`` holds; one that was taken away since has no name."""
        names = {number_of(name): name for name in limits}
        taken = underway.taken.items()
        counts = Counter(self.parked[seq][1] for seq, delivery in taken if self.of(seq, delivery) == "held")
        for group in underway.given_back:
            if state_of_group(group) == "held":
                counts[names.get(group.cause, "")] += group.number
        return counts


def state_of_group(group: UnsettledGroup) -> JobState:
    """Return the state of jobs that were given back."""
    return state_by_cause(group.cause, is_due=group.is_due)


async def limits_of(queue: QueueContext) -> list[JobLimit]:
    """Return all limits of a queue, in the order in which they were set."""
    control = await queue.side_to_read(queue.names.control)
    orders = await orders_in(control, queue.names.limit_subject(">"))
    return [order.limit for order in orders if order.limit is not None and not order.over]


_NOT_COMPLETED: Final[tuple[Ending, ...]] = ("failed", "cancelled", "expired")
_TAKEN: Final[tuple[JobState, ...]] = ("held", "running", "retrying")


_NO_JOB: Final = "the message is not a valid job: the worker that takes it makes it a dead letter"


def envelope_of(names: QueueNames, stored: StoredMessage) -> Envelope:
    """Return what a message says of a job; of one that is no valid job, what its subject says, and no name."""
    try:
        return decode_envelope(stored.data)
    except UNREADABLE:
        # As the worker that takes it will find; until then it is shown among the others, and counted with its key.
        return Envelope(job="", key=names.key_in(stored.subject), args=msgspec.Raw(b"null"))


def job_of_outcome(outcome: Outcome) -> JobInfo:
    return JobInfo(
        id=outcome.id,
        job=outcome.job,
        state=outcome.state,
        key=outcome.key,
        attempt=outcome.attempt,
        enqueued_at=outcome.enqueued_at,
        last_error=outcome.error,
        outcome=outcome,
        worker=outcome.worker,
        started_at=outcome.started_at,
    )


class FoundJob(NamedTuple):
    """A job that has not ended, and its message; ``is_taken``: a worker has it, begun or not."""

    stored: StoredMessage
    info: JobInfo
    is_taken: bool


class JobViews:
    """The views of one queue's jobs."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue

    async def counts(self) -> JobCounts:
        """Return how many jobs are in each state."""
        return (await self.counts_and_oldest())[0]

    async def counts_and_oldest(self) -> tuple[JobCounts, int]:
        """Return the same, and what :meth:`oldest_at` does."""
        underway = await self._queue.stats.count_underway()
        where = await self._where()
        counts = await self._counts(underway, where)
        return counts, await self._oldest_at(underway, where) if counts.unfinished else 0

    async def _counts(self, underway: UnderwayCounts, where: JobStates) -> JobCounts:
        # Of a file, all that were taken are listed; servers do not say which these are.
        states = Counter(where.of(seq, entry) for seq, entry in underway.taken.items())
        for group in underway.given_back:
            states[state_of_group(group)] += group.number
        limits = await limits_of(self._queue) if states["held"] else ()
        held = where.held_for(underway, [limit.name for limit in limits])
        async for info in self._unlisted_jobs(underway.taken, where):
            states[info.state] += 1
            held.update([info.limit] if info.state == "held" else ())
        counts = JobCounts(
            pending=await self._queue.stats.untouched(underway.number) + states["pending"],
            scheduled=await scheduled_jobs(self._queue.jet, self._queue.names) + states["scheduled"],
            running=states["running"],
            held=states["held"],
            held_for=dict(sorted(held.items())),
            retrying=states["retrying"],
            waiting=states["waiting"],
            stuck=states["stuck"],
            **await self._ended_counts(),
        )
        return await with_waiting_flow(self._queue.jet, self._queue.names, counts)

    async def _ended_counts(self) -> dict[str, int]:
        try:
            history = await self._queue.jet.stream(self._queue.names.history)
        except StreamNotFoundError:
            # An older version made the queue, and nothing was added since.
            return {}
        ended = {"completed": (await history.info()).state.messages}
        for ending in _NOT_COMPLETED if ended["completed"] else ():
            ended[ending] = await number_of_subjects(history, self._queue.names.ending_subject(ending, ">"))
            ended["completed"] -= ended[ending]
        return ended

    async def oldest_at(self) -> int:
        """Return when the oldest job that is due was enqueued, or fell due again; 0 if there is none."""
        underway = await self._queue.stats.count_underway()
        return await self._oldest_at(underway, await self._where())

    async def _oldest_at(self, underway: UnderwayCounts, where: JobStates) -> int:
        names, since = self._queue.names, list[int]()
        stream = await self._queue.jet.stream(names.jobs)
        first = await next_of(stream, ">", 1)
        is_due = first is not None and names.is_job(first.subject) and not names.is_later(first.subject)
        if first is not None and is_due and not underway.may_have(first.seq) and not where.may_be_taken(first, None):
            # As mostly: it is the stream's first message, and no worker has had it.
            return first.time_ns
        looked_up = set[int]()
        for group in underway.given_back:
            if state_by_cause(group.cause) not in _NOT_DUE:
                looked_up.add(group.first_seq)
            elif group.is_due:
                since.append(group.first_due)
        for seq in sorted({*looked_up, *sorted(underway.taken)[:_MOST_LOOKED_AT]}):
            if (stored := await message_at(stream, seq)) is None:
                continue
            known = None if seq in looked_up else await self._attempt_of(stored, where)
            if (due := where.due_again(known)) is not None:
                since.append(max(stored.time_ns, due))
            if due == 0:
                # All that follow were stored later.
                break
        since += [at async for at in self._oldest_untaken(stream, where, underway)]
        return min(since, default=0)

    async def _oldest_untaken(self, stream: Stream, where: JobStates, underway: UnderwayCounts) -> AsyncGenerator[int]:
        """Yield the times of due jobs that are not listed among those that were taken, up to the first such one."""
        async with aclosing(self._pages_of_due(stream, underway)) as pages:
            async for page in pages:
                part = UnderwayPart(tuple(stored.seq for stored in page), limit=len(page))
                taken = {one.seq for one in await self._queue.stats.select(part)}
                for stored in page:
                    if stored.seq in taken:
                        continue
                    known = await self._attempt_of(stored, where) if where.may_be_taken(stored, None) else None
                    if (due := where.due_again(known)) is not None:
                        yield max(stored.time_ns, due)
                    if due == 0:
                        return

    async def _pages_of_due(self, stream: Stream, underway: UnderwayCounts) -> AsyncGenerator[Sequence[StoredMessage]]:
        """Yield the jobs that are due, oldest first: soon without those that were taken, where there are many."""
        names, first, passed = self._queue.names, list[StoredMessage](), underway.passed
        last, others = (await stream.info()).state.last_seq, () if self._queue.exclusive else names.keyed_jobs
        there = dict[str, StoredMessage]()
        for each in names.due_jobs:
            begin = passed.get(each, 0) + 1
            if each not in others and begin <= last and (head := await next_of(stream, each, begin)) is not None:
                there[each] = head
        if not there:
            return
        # Behind what consumers have passed, mostly nobody has taken it.
        yield [min(there.values(), key=lambda head: head.seq)]
        async with aclosing(messages_of_filters(stream, [*there], passed)) as due_jobs:
            async for stored in due_jobs:
                first.append(stored)
                if len(first) == _MOST_LOOKED_AT:
                    break
        yield first
        begin = first[-1].seq + 1 if len(first) == _MOST_LOOKED_AT else 0
        while begin:
            request = FindMessages(stream=names.jobs, filters=tuple(there), begin=begin, untaken=True)
            reply = await self._queue.backend.call(request)
            if reply.messages:
                yield reply.messages
            begin = reply.next_begin

    async def _attempt_of(self, stored: StoredMessage, where: JobStates) -> Attempt | None:
        return await last_attempt(where.attempts, self._queue.names, job_id_in(stored.data, stored.seq))

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id, in whatever state it is.

        Raises JobNotFoundError if it is not known, or no longer known; ConfigError.
        """
        checked_id(self._queue.name, job_id)
        while (stored := await self.find_message(job_id)) is not None:
            (found,) = await self.infos_of([stored])
            if found is not None:
                return found
            # It has ended, or it fell due or was replaced, and so is stored anew.
        return await self.get_ended(job_id)

    async def infos_of(self, messages: Sequence[StoredMessage]) -> list[JobInfo | None]:
        """Return what there is to know of jobs that had not ended when they were read; None for one that has since."""
        if not messages:
            return []
        part = UnderwayPart(tuple(stored.seq for stored in messages), limit=len(messages))
        underway = {one.seq: one for one in await self._queue.stats.select(part)}
        where, found = await self._where(), list[JobInfo | None]()
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        # Mostly no job has told progress: then that is asked once, not for each.
        progress = self._queue.names.progress_subject("*")
        told = None if len(messages) == 1 or await number_of_subjects(where.running, progress) else ()
        for stored in messages:
            # One that was ended between the two would seem to be pending again.
            is_there = stored.seq in underway or await message_at(stream, stored.seq) is not None
            found.append(await self._to_info(stored, underway, where, told) if is_there else None)
        return found

    async def running(self) -> list[int]:
        """Return the sequences of the jobs that run, or may, where servers do not list deliveries: the oldest first.

        Of one that its worker has not told of yet, it is not known when it began: it comes last.
        """
        held = UnderwayPart(causes=(-1, -1), limit=1 << 31)
        taken, where = {one.seq: one for one in await self._queue.stats.select(held)}, await self._where()
        found = [seq for seq in {*where.begun, *taken} if where.of(seq, taken.get(seq)) == "running"]
        return sorted(found, key=lambda seq: (where.runs.get(seq, (0, "", 1 << 63))[2], seq))

    async def _states(self) -> tuple[Underway, JobStates]:
        # In this order, or a job that is begun between the two would seem to be none that was taken.
        underway = await self._queue.stats.underway()
        return underway, await self._where()

    async def _where(self) -> JobStates:
        queue = self._queue
        await queue.time.refresh(queue.names.jobs)
        unlisted = await queue.stats.unlisted()
        begun: Begun = {}
        workers: list[WorkerReport] = []
        attempts, running = [await queue.side_to_read(side) for side in (queue.names.attempts, queue.names.running)]
        async with aclosing(stored_messages(running, queue.names.worker_subject("*"))) as records:
            async for record in records:
                workers.append(_worker(record.data))
        # A queue of an older version, which is only looked at, has no such stream.
        with suppress(StreamNotFoundError):
            begun = await queue.begun.find_begun()
        return JobStates(queue.names, begun, workers, queue.clock.now(), unlisted, attempts, running)

    async def id_of_named(self, options: JobOptions) -> str:
        """Return the id of the unfinished job that was enqueued with these options. Raises JobNotFoundError."""
        options.check(f"queue {self._queue.name!r}")
        key = key_part(options.key, options.tenant, exclusive=self._queue.exclusive)
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        stored = await job_at(stream, self._queue.names, place_of("", b"", options, key, "").leaf, key)
        if stored is None:
            raise JobNotFoundError(self._queue.name, options.id, "no unfinished job was enqueued with this id")
        return job_id_in(stored.data, stored.seq)

    async def find_message(self, job_id: str) -> StoredMessage | None:
        """Return the message of a job that has not ended."""
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        return await unfinished_job(stream, self._queue.names, job_id)

    async def jobs(self, wanted: JobFilter = ALL_JOBS, *, is_brief: bool = False) -> AsyncGenerator[FoundJob]:
        """Iterate over the jobs that have not ended, oldest first, with their messages; brief: without progress."""
        unsettled, where = await self._states()
        # Those that run, or are tried again, are few among many that wait.
        listed = {seq for seq, entry in unsettled.items() if where.of(seq, entry) == wanted.state}
        others = (where.begun.keys() | where.parked.keys()) - unsettled.keys()
        is_of_few = wanted.state in _TAKEN and not where.unlisted.number
        messages = self._these(listed | others) if is_of_few else self._messages(wanted)
        # Most jobs tell none.
        told = () if is_brief else await subjects_of(where.running, self._queue.names.progress_subject("*"))
        async with aclosing(messages) as stored_jobs:
            async for stored in stored_jobs:
                entry = unsettled.get(stored.seq)
                # First what needs no look at other messages: most jobs may be others.
                if not wanted.has(envelope_of(self._queue.names, stored)):
                    continue
                if wanted.state and where.is_excluded(stored, entry, wanted.state):
                    continue
                info = await self._to_info(stored, unsettled, where, told)
                if wanted.state in ("", info.state):
                    yield FoundJob(stored, info, is_taken=entry is not None and not entry.waits)

    async def _messages(self, wanted: JobFilter) -> AsyncGenerator[StoredMessage]:
        stream, names = await self._queue.jet.stream(self._queue.names.jobs), self._queue.names
        # Only in an exclusive queue, subjects name keys.
        is_keyed = wanted.key and self._queue.exclusive
        filters = names.jobs_of_key(encode_key(wanted.key)) if is_keyed else (">",)
        async with aclosing(messages_of_filters(stream, filters)) as matching:
            async for stored in matching:
                if names.is_job(stored.subject):
                    yield stored

    async def _unlisted_jobs(self, underway: Underway, where: JobStates) -> AsyncGenerator[JobInfo]:
        """Iterate over the jobs that were taken and whose deliveries servers do not list."""
        if not where.unlisted.number:
            return
        last = max(where.unlisted.upto.values(), default=0)
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        async with aclosing(messages_of_filters(stream, self._queue.names.due_jobs)) as due_jobs:
            async for stored in due_jobs:
                if stored.seq > last:
                    return
                if stored.seq not in underway and where.is_unlisted(stored):
                    yield await self._to_info(stored, underway, where, ())

    async def _these(self, sequences: Iterable[int]) -> AsyncGenerator[StoredMessage]:
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        for seq in sorted(sequences):
            # One that has ended meanwhile is left out.
            if (stored := await message_at(stream, seq)) is not None:
                yield stored

    async def outcome(self, job_id: str, limit: float | None) -> Outcome | None:
        """Wait until a job has ended, for ``limit`` seconds at most; None if it has not ended by then."""
        stream = await self._queue.jet.stream(self._queue.names.history)
        subjects = [self._queue.names.ending_subject(ending, job_id) for ending in ENDINGS]
        message = await first_of(stream, subjects, self._queue.clock, limit)
        return None if message is None else decode_outcome(message.data)

    async def _to_info(
        self, stored: StoredMessage, unsettled: Underway, where: JobStates, told: Container[str] | None = None
    ) -> JobInfo:
        """Return what there is to know of a job; of its progress, only if it is among those ``told``, if given."""
        envelope = envelope_of(self._queue.names, stored)
        delivery = unsettled.get(stored.seq)
        job_id = envelope.id or str(stored.seq)
        # Of one that no worker has had, there is nothing more to know.
        was_taken = where.may_be_taken(stored, delivery)
        known = await last_attempt(where.attempts, self._queue.names, job_id) if was_taken else None
        if delivery is not None:
            # Of deliveries before this one; one that was given back is accounted for.
            known = where.complete(known, stored.seq, delivery)
        is_later = self._queue.names.is_later(stored.subject)
        state = "scheduled" if is_later else where.of(stored.seq, delivery, known)
        due = scheduled_for(stored, envelope, self._queue.time.now()) if is_later else 0
        waits_for = known.waits_for if known is not None and state == "waiting" else None
        if not is_later and state in _GIVEN_BACK and (waits_for is None or waits_for.until):
            due = where.due_of(delivery, known)
        worker, started_at = where.run_of(stored.seq, delivery) if state == "running" else ("", 0)
        return JobInfo(
            id=job_id,
            job=envelope.job,
            state=state,
            worker=worker,
            started_at=started_at,
            key=envelope.key,
            due=due,
            attempt=(known.attempt if known else 0) + (state == "running"),
            enqueued_at=stored.time_ns,
            last_error=(known.error or ("" if known.limit else known.waits))
            if known
            else ""
            if envelope.job
            else _NO_JOB,
            progress=await self._progress(where.running, job_id, told) if was_taken else None,
            priority=envelope.priority,
            tenant=envelope.tenant,
            limit=where.limit_of(stored.seq, known) if state == "held" else "",
            waits_for=waits_for,
        )

    async def _progress(self, running: Stream, job_id: str, told: Container[str] | None) -> JobProgress | None:
        subject = self._queue.names.progress_subject(job_id)
        last = await last_of(running, subject) if told is None or subject in told else None
        return None if last is None else decode_progress(last.data)

    async def get_ended(self, job_id: str) -> JobInfo:
        """Return a job that has ended. Raises JobNotFoundError if it has not, or if that is no longer known."""
        stream = await self._queue.jet.stream(self._queue.names.history)
        for ending in ENDINGS:
            stored = await last_of(stream, self._queue.names.ending_subject(ending, job_id))
            if stored is None:
                continue
            return job_of_outcome(decode_outcome(stored.data))
        raise JobNotFoundError(self._queue.name, job_id, "it was never enqueued here, or its history was cleaned")
