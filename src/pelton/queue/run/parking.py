"""Jobs that a limit or a pause holds back: those that wait here, those that are put off, and how these are recalled.

**A few wait here, under their leases, to start at once; the others are given back.** What is given back is put off
until its turn is likely to come, as far as this worker can tell, so that a long line of jobs neither goes round and
round nor keeps others behind it from starting. That is not counted as an attempt.

**What was put off is recalled when the limit or the pause changes.** A worker records it with the delivery that it gave
back. Whoever changes a limit, or ends a pause, reads these records, and has each job delivered at once that was put off
for another limit of that scope, or for the pause, the oldest first, whether its worker still lives or not. A worker
that did not know of the change yet recalls what it has put off since.

The record is claimed as the job is delivered, so that nobody recalls what somebody else has recalled or taken. Those
are left alone that are due in a moment: on servers, a job that is delivered anyway may be before its record is claimed.

**A job that waits for a signal is recalled by it** (docs/decisions/0041). On servers, its record is stored before it is
given back, and a recall that came between would be undone by that. So its worker notes in the record when it has given
the job back, and until then, or until its lease must be over, a signal has to come again. There, who recalls a job may
die after it has claimed the record. Then the signal comes again, and the job is given back once more if nobody has
begun it since.

**A job of another version waits for a worker of that one.** It is put off for a day. Whoever has put it off tells so by
an order, and a worker of its version that has room recalls it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from pelton.api import ConsumerNotFoundError, Outgoing, PeltonError, Settled, headers
from pelton.api.json_values import UNREADABLE
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.registers import ASK_AGAIN_S, MovedError
from pelton.jet.stream import last_of
from pelton.queue.key_table import CHANNEL, Ledger
from pelton.queue.model.limits import WHOLE_QUEUE, Order, version_order
from pelton.queue.model.naming import CANCEL
from pelton.queue.model.records import PutOff
from pelton.queue.model.states import FOR_SIGNAL, FOR_VERSION, Attempt, PutOffDelivery
from pelton.queue.run.admission import LOOK_AGAIN_S, SlotJob
from pelton.queue.scan import number_of_subjects, stored_messages

if TYPE_CHECKING:
    from pelton.api import StoredMessage
    from pelton.jet import Stream
    from pelton.queue.model.limits import JobLimit, Orders
    from pelton.queue.model.records import Ended
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.admission import Admission, HeldBack
    from pelton.runtime import Random, Signal

_LONGEST_WAIT_S: Final = 5.0
_SHORTEST_S: Final = 0.001
_SHORTEST_PUT_OFF_S: Final = 0.1
_LONGEST_PUT_OFF_S: Final = 300.0
_MOST_LINES: Final = 4096

J = TypeVar("J", bound=SlotJob)


class _Parked:
    __slots__ = ("due", "expires", "held_back", "looked")

    def __init__(self, held_back: HeldBack, now: float, lives_for: float) -> None:
        self.held_back = held_back
        self.due = now + held_back.wait
        self.expires = now + lives_for
        self.looked = now


class Parking(Generic[J]):
    """The jobs of one worker that wait for a limit; at most ``size`` at each place, or all (``keeps_all``)."""

    def __init__(
        self, queue: QueueContext, admission: Admission, orders: Orders, size: int, *, keeps_all: bool = False
    ) -> None:
        self._clock = queue.clock
        self._random = queue.runtime.random
        self._admission = admission
        self._orders = orders
        self._size = size
        self._keeps_all = keeps_all
        self._most = 4 * size + 16
        self._parked: dict[J, _Parked] = {}
        self._at: dict[str, int] = {}
        # When the next job that is given back is likely to start, by place.
        self._lines: dict[str, float] = {}
        self._lines_of = 0

    async def follow(self, start: Callable[[list[J]], None]) -> None:
        """Call ``start`` for ever, whenever jobs may start that have waited, or there is more room for others."""
        while True:
            seen = self._admission.changed.generation
            start(self.ready())
            await self._admission.changed.wait_at_most(self._clock, self._looks_in(), seen)

    def hold_back(self, job: J, held_back: HeldBack) -> PutOff | None:
        """Have a job wait here; or return for how long it is to be put off: always while the queue is paused."""
        place = held_back.place
        fits = (
            self._at.get(place, 0) < self._most_at(held_back.limit, held_back.wait) and len(self._parked) < self._most
        )
        if self._orders.is_all_paused or not (fits or self._keeps_all):
            return self._put_off(job, held_back)
        self._parked[job] = _Parked(held_back, self._clock.boottime(), job.records.lives_for())
        self._at[place] = self._at.get(place, 0) + 1
        self._admission.changed.notify()
        return None

    def remove(self, job: J) -> bool:
        """Let a job wait no longer; return whether it did."""
        parked = self._parked.pop(job, None)
        if parked is None:
            return False
        place = parked.held_back.place
        self._at[place] -= 1
        if not self._at[place]:
            del self._at[place]
        return True

    def clear(self) -> list[J]:
        """Let all jobs wait no longer, and return them."""
        jobs = list(self._parked)
        self._parked.clear()
        self._at.clear()
        return jobs

    def _most_at(self, limit: JobLimit, wait: float) -> int:
        """Return how many jobs are worth keeping here for one place."""
        if wait == inf:
            return self._size
        if wait > _LONGEST_WAIT_S or limit.rate is None:
            return 0
        return min(max(int(_LONGEST_WAIT_S * 1e9) // limit.rate.interval_ns, 1), self._size)

    def parked_jobs(self) -> list[tuple[int, int, str]]:
        """Return the jobs that wait here: sequence, number of the delivery, name of the limit."""
        return [
            (job.records.delivered.seq, job.records.delivered.num_delivered, parked.held_back.limit.name)
            for job, parked in self._parked.items()
        ]

    def _put_off(self, job: J, held_back: HeldBack) -> PutOff:
        """Return for how long a job is to be given back."""
        place, now = held_back.place, self._clock.boottime()
        if self._lines_of != self._admission.limits_heard:
            # Of other limits.
            self._lines, self._lines_of = {}, self._admission.limits_heard
        if len(self._lines) > _MOST_LINES:
            self._lines = {name: at for name, at in self._lines.items() if at > now}
        between = self._admission.seconds_between(held_back)
        first = now + (0.0 if held_back.wait == inf else held_back.wait) + self._at.get(place, 0) * between
        turn = max(self._lines.get(place, 0.0), first)
        self._lines[place] = turn + between
        delay = max(turn - now, _SHORTEST_PUT_OFF_S)
        if delay > _LONGEST_PUT_OFF_S:
            # Spread, so that they do not all come back at once.
            delay = _LONGEST_PUT_OFF_S * (0.5 + self._random.random() / 2)
        # It ends when its time is over.
        delay = min(delay, max(job.records.lives_for(), _SHORTEST_S))
        return PutOff(delay, f"it waits for a limit: {describe_limit(held_back)}", limit=held_back.limit)

    def ready(self) -> list[J]:
        """Return the jobs that may start now, as far as this worker knows; they wait here no longer."""
        now = self._clock.boottime()
        for parked in self._parked.values():
            if now - parked.looked >= LOOK_AGAIN_S:
                # Should this worker have missed a change.
                parked.looked = now
                self._admission.mark_outdated(parked.held_back.place)
        found = list[J]()
        for job, held_back in self._admission.hindrances(self._parked):
            if held_back is None or self._parked[job].expires <= now:
                found.append(job)
            else:
                self._parked[job].due = now + held_back.wait
        for job in found:
            self.remove(job)
        return found

    def starts_in(self) -> float:
        """Return in how many seconds a job may start if nothing changes; infinity if none waits, or none knows."""
        now = self._clock.boottime()
        due = min((min(parked.due, parked.expires) for parked in self._parked.values()), default=inf) - now
        return max(min([due, *map(self._admission.next_death, self._at)]), _SHORTEST_S)

    def _looks_in(self) -> float | None:
        """Return in how many seconds to look whether a job may start; None if none waits."""
        if not self._parked:
            return None
        looked = min(parked.looked for parked in self._parked.values())
        return max(min(self.starts_in(), looked + LOOK_AGAIN_S - self._clock.boottime()), _SHORTEST_S)

    def room(self) -> int | None:
        """Return how many more jobs are worth taking; None if no limit of the whole queue says."""
        room, limit = self._admission.room(), self._admission.whole
        if room is None or limit is None:
            return None
        waits = [inf] if limit.concurrency is not None else []
        waits += [0.0] if limit.rate is not None else []
        most = min(self._most_at(limit, wait) for wait in waits)
        return max(room + most - self._at.get(WHOLE_QUEUE, 0), 0)


def describe_limit(held_back: HeldBack) -> str:
    limit = held_back.limit
    jobs = f"jobs {limit.job!r}" if limit.job else "jobs"
    if held_back.wait == inf:
        what = f"{limit.concurrency} {jobs} at a time"
    else:
        assert limit.rate is not None
        what = f"{limit.rate.starts} {jobs} in {limit.rate.per:g} s"
    return f"{what}, of each key" if limit.per_key else what


_AT_ONCE: Final = 64
_SOON_NS: Final = 10**9
_LEASES: Final = 2
_LAST_NOTES_S: Final = 5.0
_MOST_CONFIRMING: Final = 1024
_REMEMBERED_S: Final = 30.0
# For about how long a job of another version is given back; for less than that order, and then told anew.
_VERSION_S: Final = 86_400.0
_attempt: Final = msgspec.json.Decoder(Attempt).decode
_encode: Final = msgspec.json.Encoder().encode


class PutOffJob(NamedTuple):
    """A job that was put off: its record, with the sequence of that, and the delivery given back."""

    seq: int
    record: Attempt
    delivery: PutOffDelivery


class Recall:
    """Has jobs of one queue delivered at once that were put off."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._ledger = Ledger(queue.backend, queue.names)

    async def all_of(self, scope: str, limit: str | None) -> None:
        """Recall what was put off for another limit of a scope than the present one, by its text.

        None: there is none any more, or the pause is over.
        """
        stream = await self._queue.jet.stream(self._queue.names.attempts)
        async with aclosing(stored_messages(stream, self._queue.names.attempt_subject("*"))) as stored:
            found = [job async for one in stored if (job := _put_off(one)) and is_outdated(job.delivery, scope, limit)]
        await self._recall(found)

    async def these(self, deliveries: Iterable[tuple[str, PutOffDelivery]]) -> None:
        """Recall jobs by their ids, unless they were taken since."""
        stream = await self._queue.jet.stream(self._queue.names.attempts)
        found = await asyncio.gather(*(self._put_off_job(stream, *one) for one in deliveries))
        await self._recall([job for job in found if job is not None])

    async def of_versions(self, job_id: str, versions: Container[str]) -> int:
        """Recall a job if it waits for a worker of one of these versions; return how many were recalled."""
        stored = await last_of(await self._queue.jet.stream(self._queue.names.attempts), self._subject_of(job_id))
        job = None if stored is None else _put_off(stored)
        if job is None or job.delivery.scope != FOR_VERSION or job.delivery.limit not in versions:
            return 0
        await self._recall([job])
        return 1

    async def by_signals(self, job_id: str, name: str, seqs: Sequence[int], *, is_urgent: bool) -> bool | None:
        """Recall a job if it waits for signals of this name, a token, with these sequences; return whether it did.

        One that waits for several is recalled when all are there, or by one that ``is_urgent``. None: it can't be done
        yet. Raises PeltonError.
        """
        stored = await last_of(await self._queue.jet.stream(self._queue.names.attempts), self._subject_of(job_id))
        job = None if stored is None else _put_off(stored)
        if (
            stored is None
            or job is None
            or job.delivery.scope != FOR_SIGNAL
            or name not in (job.delivery.limit, CANCEL)
        ):
            return False
        if job.delivery.recalled_by:
            return job.delivery.recalled_by not in seqs or await self._again(job)
        if job.delivery.wanted and not is_urgent:
            running = await self._queue.jet.stream(self._queue.names.running)
            if await number_of_subjects(running, self._queue.names.signals_of(job_id, name)) < job.delivery.wanted:
                return True
        now = self._queue.clock.now()
        if not job.delivery.is_given and abs(now - stored.time_ns) < _LEASES * self._queue.lease * 1e9:
            return None
        if job.delivery.consumer == CHANNEL:
            return await self._recall_key(job)
        recalled = msgspec.structs.replace(job.delivery, recalled_by=seqs[-1])
        claim = self._instead(job, msgspec.structs.replace(job.record, put_off=recalled, retry_at=0, waits=""))
        settled = Settled((claim,), job.delivery.nak(), due=job.record.retry_at)
        await self._queue.backend.settle_once(settled, self._queue.names.jobs, job.delivery.consumer)
        return True

    async def _again(self, job: PutOffJob) -> bool:
        """Give a job back once more that was claimed by somebody who has died, perhaps before it was given back."""
        begun = (await self._queue.begun.find_begun()).get(job.delivery.seq, ())
        if all(number <= job.delivery.num_delivered for number in begun):
            await self._queue.backend.ack(self._queue.names.jobs, job.delivery.consumer, [job.delivery.nak()])
        return True

    async def confirm(self, job_id: str, delivery: PutOffDelivery) -> None:
        """Note that a job that waits for a signal is given back, unless it was recalled or taken."""
        # Without the note, it is recalled all the same, but later.
        with suppress(PeltonError):
            stream = await self._queue.jet.stream(self._queue.names.attempts)
            if (job := await self._put_off_job(stream, job_id, delivery)) is not None:
                given = msgspec.structs.replace(job.record, put_off=msgspec.structs.replace(delivery, is_given=True))
                note = self._instead(job, given)
                await self._queue.backend.publish(note.subject, note.data, note.headers)

    async def tell_versions(self, deliveries: Iterable[tuple[str, PutOffDelivery]]) -> None:
        """Tell the workers of other versions again which jobs were given back: now they can be recalled."""
        orders = [version_order(self._queue.names, job_id, delivery.limit) for job_id, delivery in deliveries]
        with suppress(PeltonError):
            await self._queue.backend.publish_apart(orders)

    def _subject_of(self, job_id: str) -> str:
        return self._queue.names.attempt_subject(job_id)

    async def _put_off_job(self, stream: Stream, job_id: str, delivery: PutOffDelivery) -> PutOffJob | None:
        stored = await last_of(stream, self._subject_of(job_id))
        job = None if stored is None else _put_off(stored)
        return job if job is not None and job.delivery == delivery else None

    async def _recall(self, jobs: Sequence[PutOffJob]) -> None:
        jobs = sorted(jobs, key=lambda job: job.delivery.seq)
        for start in range(0, len(jobs), _AT_ONCE):
            await self._recall_some(jobs[start : start + _AT_ONCE])

    async def _recall_some(self, jobs: Sequence[PutOffJob]) -> None:
        now = self._queue.clock.now()
        jobs = [job for job in jobs if job.record.retry_at > now + _SOON_NS]
        await asyncio.gather(*(self._recall_key(job) for job in jobs if job.delivery.consumer == CHANNEL))
        given_back: dict[str, list[Settled]] = {}
        for job in jobs:
            if job.delivery.consumer != CHANNEL:
                settled = Settled((self._claim_of(job),), job.delivery.nak())
                given_back.setdefault(job.delivery.consumer, []).append(settled)
        for consumer, endings in given_back.items():
            with suppress(ConsumerNotFoundError):
                await self._queue.backend.settle_many(endings, self._queue.names.jobs, consumer)

    def _claim_of(self, job: PutOffJob) -> Outgoing:
        return self._instead(job, msgspec.structs.replace(job.record, put_off=None, retry_at=0))

    def _instead(self, job: PutOffJob, record: Attempt) -> Outgoing:
        """Return another record of a job, which is refused if the one that was read has changed."""
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(job.seq)})
        return Outgoing(self._subject_of(record.id), _encode(record), block)

    async def _recall_key(self, job: PutOffJob) -> bool | None:
        """Have the job of a key delivered; return whether it waited, None if it is about to."""
        key = self._queue.names.key_of_job(job.delivery.subject)
        seq, hold = await self._ledger.read(key)
        known = hold.known if hold is not None and hold.state == "waiting" else None
        if hold is not None and known is not None and known.put_off == job.delivery:
            with suppress(MovedError):
                await self._ledger.write(key, msgspec.structs.replace(hold, delay_ns=0), seq)
                return True
        is_settled = hold is not None and hold.state == "settled" and hold.waits_for_signal
        return None if is_settled else False


def other_version(known: Attempt | None, own: str, random: Random) -> PutOff | None:
    """Return how a worker of a version of its ``own`` gives a job back that goes on with another one."""
    if not own or known is None or known.version in ("", own):
        return None
    # Should no worker hear of it.
    delay = _VERSION_S * (0.5 + random.random())
    return PutOff(delay, f"it waits for a worker of version {known.version!r}", is_stuck=True, awaits=known.version)


class VersionRecall:
    """Has jobs delivered that workers of other versions gave back for this one, no more than it has room for.

    What is delivered may be taken by another worker once more, which says so again.
    """

    def __init__(self, queue: QueueContext) -> None:
        self._clock, self._recall = queue.clock, Recall(queue)
        self._versions = queue.jobs.versions
        self.waiting: dict[str, None] = {}
        self.is_recalling: bool = False

    def heed(self, order: Order) -> None:
        if order.version in self._versions:
            self.waiting[order.waits] = None

    async def follow(self, changed: Signal, count_wanted: Callable[[], int]) -> None:
        """Recall jobs for ever, whenever there is room."""
        while True:
            seen = changed.generation
            try:
                wanted = count_wanted()
                while self.waiting and wanted > 0:
                    # Before: it may be given back once more, and told, as soon as it is recalled.
                    self.waiting.pop(job_id := next(iter(self.waiting)))
                    self.is_recalling = True
                    try:
                        wanted -= await self._recall.of_versions(job_id, self._versions)
                    except BaseException:
                        self.waiting[job_id] = None
                        raise
                    finally:
                        self.is_recalling = False
            except FINAL_ERRORS:
                raise
            except PeltonError:
                await self._clock.sleep(ASK_AGAIN_S)
            else:
                await changed.wait(seen)


class LatePutOffs:
    """What one worker puts off, for when it learns later that the limit has changed."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._recall = Recall(queue)
        # What holds: limits by their texts, and pauses, by scope.
        self._limits: dict[str, str] = {}
        self.is_on: bool = False
        self._recent: deque[tuple[float, str, PutOffDelivery]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._confirming: deque[asyncio.Task[None]] = deque(maxlen=_MOST_CONFIRMING)

    def heed(self, order: Order) -> None:
        """Note a limit or a pause; recall what was put off for another one of its scope."""
        scopes = order.pause_scopes if order.limit is None else (order.limit.scope,)
        for scope in scopes:
            if order.over:
                self._limits.pop(scope, None)
            else:
                self._limits[scope] = "" if order.limit is None else order.limit.text
        if not scopes:
            return
        self.is_on = True
        self._forget()
        self._recall_outdated([(job_id, delivery) for _, job_id, delivery in self._recent])

    def note(self, endings: Iterable[Ended]) -> None:
        """Note what became of deliveries: which were put off."""
        found = [
            (ended.known.id, ended.known.put_off)
            for ended in endings
            if ended.known is not None and ended.known.put_off is not None
        ]
        for job_id, delivery in found:
            if not delivery.is_given:
                self._confirming.append(self._spawn(self._recall.confirm(job_id, delivery)))
        if waits := [one for one in found if one[1].scope == FOR_VERSION]:
            self._confirming.append(self._spawn(self._recall.tell_versions(waits)))
        found = [one for one in found if one[1].scope not in (FOR_SIGNAL, FOR_VERSION)]
        if found:
            self._forget()
            now = self._queue.clock.boottime()
            self._recent.extend((now, *one) for one in found)
            self._recall_outdated(found)

    def _forget(self) -> None:
        since = self._queue.clock.boottime() - _REMEMBERED_S
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()

    def _recall_outdated(self, deliveries: Iterable[tuple[str, PutOffDelivery]]) -> None:
        outdated = [one for one in deliveries if is_outdated(one[1], one[1].scope, self._limits.get(one[1].scope))]
        if outdated:
            self._spawn(self._recall.these(outdated))

    def _spawn(self, recalling: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._queue.runtime.spawn(recalling, f"pelton {self._queue.name} recalls jobs")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Leave what is not recalled yet."""
        if confirming := [task for task in self._tasks if task in self._confirming]:
            await asyncio.wait(confirming, timeout=_LAST_NOTES_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def is_outdated(delivery: PutOffDelivery, scope: str, limit: str | None) -> bool:
    """Whether a job was put off for another limit of a scope than the present one."""
    return delivery.scope == scope and delivery.limit != limit


def _put_off(stored: StoredMessage) -> PutOffJob | None:
    with suppress(*UNREADABLE):
        record = _attempt(stored.data)
        if record.put_off is not None:
            return PutOffJob(stored.seq, record, record.put_off)
    return None
