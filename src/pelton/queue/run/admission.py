"""Admission of jobs to a queue with limits: a job starts when it has a slot of every limit that it is under.

Design: Jobs ask just before they start, and those that ask, or return slots, while a write is under way are written
together: one write a record. A job needs slots at up to four places; it is only tried when all of them look free, and
what it got at some of them is returned when another one refuses. Concurrency is exact, because every record is changed
under the condition that nobody else has changed it; of a rate, a start that came to nothing stays used.

A slot is held for as long as the job's lease: both are extended together (`SlotExtender`), and returned when the job is
settled, given back or lost. What one worker knows of the records (`SlotBook`) may be outdated. No wall clock of another
machine decides who has died: a worker's part counts as dead when it was seen unchanged for a whole lease, or when its
process, which is one of this machine, has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from pelton.api import PeltonError
from pelton.jet.registers import ASK_AGAIN_S, Follower, MovedError, Register, is_busy, last_and_new
from pelton.queue.model.limits import (
    EMPTY,
    UNKNOWN_OFFSET,
    WHOLE_QUEUE,
    JobLimit,
    SlotDraft,
    SlotRecord,
    decode,
    encode,
    places_of,
)
from pelton.runtime import LOOK_S, ProcessWatch, Signal, WallOffset, end_tasks, wall_ahead

if TYPE_CHECKING:
    from pelton.api import Delivered
    from pelton.queue.model.limits import Order
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.registry import QueueContext

_MOST_KNOWN: Final = 16_384
_FIRST_BETWEEN_S: Final = 0.02
_SHORTEST_BETWEEN_S: Final = 0.002


class SlotJob(Protocol):
    """A job that needs slots."""

    records: AttemptRecords

    def lose(self, reason: str) -> None:
        """Note that its lease is lost."""


class _Known:
    """A record as it was seen last; ``parts``: each worker's beat, and since when it is the same."""

    __slots__ = ("between", "freed", "is_outdated", "parts", "record", "seq")

    def __init__(self, now: float) -> None:
        # When a slot was returned last, and about how many seconds pass between two returns.
        self.freed = now
        self.between = _FIRST_BETWEEN_S
        self.seq = 0
        self.record = EMPTY
        self.parts: dict[str, tuple[int, float]] = {}
        self.is_outdated = True


class SlotBook:
    """The records of limits as one worker sees them. ``lease`` in seconds, times in seconds since boot."""

    def __init__(self, worker: str, lease: float, processes: ProcessWatch) -> None:
        self._worker = worker
        self._lease = lease
        self._processes = processes
        self._known: dict[str, _Known] = {}
        # The jobs that hold a slot of ours, by place: what we have written, and not returned since.
        self._mine: dict[str, dict[int, SlotJob]] = {}

    # --- records

    def saw(self, place: str, seq: int, record: SlotRecord, now: float) -> bool:
        """Note a record; return whether it is news.

        An older one than the known is ignored, as a watch may bring it late; 0 is the sequence of none at all.
        """
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = _Known(now)
            self._make_room()
        elif (0 < seq < known.seq) or (seq == known.seq and not known.is_outdated):
            return False
        if freed := len(_held_jobs(known.record) - _held_jobs(record)):
            known.between += 0.2 * ((now - known.freed) / freed - known.between)
            known.freed = now
        known.seq, known.record, known.is_outdated = seq, record, False
        before = known.parts
        known.parts = {}
        for worker, slots in record.workers.items():
            seen = before.get(worker)
            known.parts[worker] = seen if seen is not None and seen[0] == slots.beat else (slots.beat, now)
        return True

    def mark_outdated(self, place: str) -> None:
        """Note that a record has changed; what was seen of its workers is kept."""
        if (known := self._known.get(place)) is not None:
            known.is_outdated = True

    def knows(self, place: str) -> bool:
        known = self._known.get(place)
        return known is not None and not known.is_outdated

    def seq(self, place: str) -> int:
        """Return the sequence of a record that is known."""
        return self._known[place].seq

    def _make_room(self) -> None:
        if len(self._known) > _MOST_KNOWN:
            oldest = next(place for place in self._known if place not in self._mine)
            del self._known[oldest]

    # --- deciding

    def draft(
        self, place: str, limit: JobLimit | None, now: float, wall: int, clock: WallOffset = UNKNOWN_OFFSET
    ) -> SlotDraft:
        """Begin to change a record that is known. ``wall`` in wall nanoseconds, of this machine's ``clock``."""
        known = self._known[place]
        dead = {
            worker
            for worker, (_, since) in known.parts.items()
            if worker != self._worker
            and (now - since >= self._lease or self._processes.is_gone(known.record.workers[worker].process, now))
        }
        mine = self._mine.get(place, ())
        return SlotDraft(limit, known.record, self._worker, mine, dead, wall, self._processes.own, clock)

    def next_death(self, place: str, now: float) -> float:
        """Return in how many seconds a worker may count as dead, if its part does not change; infinity for none."""
        known = self._known.get(place)
        found = inf
        if known is None:
            return found
        for worker, slots in known.record.workers.items():
            if worker != self._worker:
                is_near = self._processes.is_near(slots.process)
                found = min(found, known.parts[worker][1] + self._lease - now, LOOK_S if is_near else inf)
        return found

    def seconds_between(self, place: str) -> float:
        """Return about how many seconds pass between two returned slots, or less.

        Jobs that wait come back one after the other at this distance: a slot must not be free for long while they wait
        for it, and they must not keep a worker busy.
        """
        known = self._known.get(place)
        return max(min(_FIRST_BETWEEN_S if known is None else known.between, _FIRST_BETWEEN_S), _SHORTEST_BETWEEN_S)

    # --- slots

    def hold(self, place: str, job: SlotJob) -> None:
        """Note that a job holds a slot, which was written; one that was taken anew takes over the slot it had."""
        self._mine.setdefault(place, {})[job.records.delivered.seq] = job

    def holds(self, place: str, job: SlotJob) -> bool:
        """Whether it is this job, taken this time, that holds a slot."""
        return self._mine.get(place, {}).get(job.records.delivered.seq) is job

    def drop(self, place: str, job: SlotJob) -> bool:
        """Note that a job no longer holds a slot; return False if it held none, or else the record is to be written."""
        if not self.holds(place, job):
            return False
        mine = self._mine[place]
        del mine[job.records.delivered.seq]
        if not mine:
            del self._mine[place]
        return True

    def lost_jobs(self, place: str) -> list[SlotJob]:
        """Return jobs whose slots others have dropped: their leases had ended, as far as those could tell."""
        mine, known = self._mine.get(place), self._known[place]
        if not mine:
            return []
        kept = known.record.workers.get(self._worker)
        left = set(kept.jobs) if kept is not None else set()
        return [mine[seq] for seq in list(mine) if seq not in left]


def _held_jobs(record: SlotRecord) -> set[int]:
    return {job for slots in record.workers.values() for job in slots.jobs}


_log: Final = logging.getLogger("pelton.queue")
_LAST_WRITES_S: Final = 5.0
# Nobody relies on hearing of every change: after that long, one looks.
LOOK_AGAIN_S: Final = 5.0

J = TypeVar("J", bound=SlotJob)


class HeldBack(NamedTuple):
    """Why a job may not start now: which limit, at which place.

    ``wait`` is how many seconds it has to wait; infinity means until a slot is returned.
    """

    place: str
    limit: JobLimit
    wait: float


class _Entrant:
    """A job that asks: ``places`` is what it needs, ``got`` what it has of that, ``held`` where it holds a slot."""

    __slots__ = ("answer", "got", "held", "job", "places", "seq")

    def __init__(self, job: SlotJob, answer: asyncio.Future[HeldBack | None]) -> None:
        self.job = job
        self.seq = job.records.delivered.seq
        self.answer = answer
        self.places: dict[str, JobLimit] = {}
        self.got: set[str] = set()
        self.held: set[str] = set()


class Admission:
    """Decides which jobs of one worker may start."""

    def __init__(self, queue: QueueContext, worker: str) -> None:
        self._queue = queue
        self._clock = queue.clock
        self._boot = self._clock.boot_id()
        # Records of slots, by place. If nobody holds one, the store may remove it, so that keys leave nothing behind.
        self.register: Register[SlotRecord] = Register(
            queue.backend, queue.names.running, queue.names.slots_subject(""), encode, decode, self._kept_for
        )
        self._book = SlotBook(worker, queue.lease, ProcessWatch())
        self._limits: dict[str, JobLimit] = {}
        # Whether the queue has any limit.
        self.is_on: bool = False
        # How often a limit was set or taken away.
        self.limits_heard: int = 0
        # The places at which jobs hold slots, by their sequences; the keeper of leases reads it.
        self.slots: dict[int, tuple[str, ...]] = {}
        # The jobs themselves: one that was taken anew has the slots, and not the one that lost its lease.
        self._holders: dict[int, SlotJob] = {}
        # Something may be different: a limit, a slot, a record.
        self.changed: Signal = Signal()
        self._asking: list[_Entrant] = []
        self._entering: list[_Entrant] = []
        self._unwritten: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    # --- limits

    @property
    def is_writing(self) -> bool:
        """Whether jobs ask, or slots are being returned."""
        return self._task is not None and not self._task.done()

    def heed(self, order: Order) -> None:
        """Note a limit, which replaces an earlier one of its scope, or that one is over."""
        if (limit := order.limit) is None:
            return
        if order.over:
            self._limits.pop(limit.scope, None)
        else:
            self._limits[limit.scope] = limit
        self.is_on = bool(self._limits)
        self.limits_heard += 1
        if self._limits and self._watching is None:
            self._watching = self._queue.runtime.spawn(self._follow(), f"pelton {self._queue.name} limits")
        self.changed.notify()

    async def _follow(self) -> None:
        """Follow the records, to hear at once when another worker returns a slot."""
        queue, outage = self._queue, self._queue.outage("its limits", is_busy)
        records = partial(last_and_new, queue.jet, queue.names.running, filter_subject=queue.names.slots_subject(">"))
        await Follower(records, self._saw, outage.wait, outage.end).follow()

    async def _saw(self, one: Delivered | None) -> None:
        if one is None:
            return
        place = one.subject.removeprefix(self._queue.names.slots_subject(""))
        if self._book.saw(place, one.seq, decode(one.data), self._clock.boottime()):
            self._lose(place)
            self.changed.notify()

    def _places(self, job: SlotJob) -> dict[str, JobLimit]:
        envelope = job.records.envelope
        return places_of(self._limits.values(), envelope.job, envelope.key)

    # --- looking

    def hindrances(self, jobs: Iterable[J]) -> list[tuple[J, HeldBack | None]]:
        """Return what keeps each job from starting beside the jobs before it, as far as known; None: nothing."""
        drafts: dict[str, SlotDraft] = {}
        return [(job, self._try(job.records.delivered.seq, self._places(job), drafts)) for job in jobs]

    def room(self) -> int | None:
        """Return how many more jobs the limit of the whole queue lets start now; None if it says nothing."""
        limit = self.whole
        if limit is None or not self._book.knows(WHOLE_QUEUE):
            return None
        return self._draft(WHOLE_QUEUE, limit, {}).room

    def room_in(self) -> float:
        """Return in how many seconds there may be room for another job; infinity: when a slot is returned."""
        limit = self.whole
        if limit is None or not self._book.knows(WHOLE_QUEUE):
            return inf
        wait = self._draft(WHOLE_QUEUE, limit, {}).wait(0)
        return min(wait or inf, max(self.next_death(WHOLE_QUEUE), 0.01))

    @property
    def whole(self) -> JobLimit | None:
        return self._limits.get(WHOLE_QUEUE)

    def next_death(self, place: str) -> float:
        """Return in how many seconds the slots of a worker are free that may have died; infinity for none."""
        return self._book.next_death(place, self._clock.boottime())

    def mark_outdated(self, place: str) -> None:
        """Have a record read again: this worker may have missed a change."""
        self._book.mark_outdated(place)

    def _draft(self, place: str, limit: JobLimit | None, drafts: dict[str, SlotDraft]) -> SlotDraft:
        draft = drafts.get(place)
        if draft is None:
            offset = WallOffset(self._boot, wall_ahead(self._clock))
            draft = self._book.draft(place, limit, self._clock.boottime(), self._clock.now(), offset)
            drafts[place] = draft
        return draft

    def _try(self, seq: int, places: dict[str, JobLimit], drafts: dict[str, SlotDraft]) -> HeldBack | None:
        """Start a job in drafts, or return why it may not; places that are not known do not hold it back."""
        known = {place: limit for place, limit in places.items() if self._book.knows(place)}
        for place, limit in known.items():
            if (wait := self._draft(place, limit, drafts).wait(seq)) > 0:
                return HeldBack(place, limit, wait)
        for place, limit in known.items():
            self._draft(place, limit, drafts).start(seq)
        return None

    # --- asking and returning

    async def enter(self, job: SlotJob) -> HeldBack | None:
        """Take the slots that a job needs to start; return None, or why it has to wait.

        Raises PeltonError if the store fails for good.
        """
        if self._holders.get(job.records.delivered.seq) is job or not self._places(job):
            return None
        entrant = _Entrant(job, asyncio.get_running_loop().create_future())
        self._asking.append(entrant)
        self._write()
        try:
            return await entrant.answer
        finally:
            if entrant.answer.cancelled():
                self._write()

    def leave(self, jobs: Iterable[SlotJob]) -> None:
        for job in jobs:
            seq = job.records.delivered.seq
            if self._holders.get(seq) is job:
                del self._holders[seq]
                self._return(job, self.slots.pop(seq))

    def seconds_between(self, held_back: HeldBack) -> float:
        """Return about how many seconds pass from one start to the next at a place where a job is held back."""
        limit = held_back.limit
        if held_back.wait < inf:
            return limit.rate.interval_ns / 1e9 if limit.rate is not None else 0.0
        return self._book.seconds_between(held_back.place)

    def _return(self, job: SlotJob, places: Iterable[str]) -> None:
        for place in places:
            if self._book.drop(place, job):
                self._unwritten.add(place)
        if self._unwritten:
            self._write()

    def _lose(self, place: str) -> None:
        """Tell jobs whose slots others have dropped."""
        for job in self._book.lost_jobs(place):
            self._book.drop(place, job)
            job.lose("its slot of a limit was given to another job")

    # --- writing

    def _write(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._queue.runtime.spawn(self._write_all(), f"pelton {self._queue.name} slots")

    async def _write_all(self) -> None:
        while self._asking or self._entering or self._unwritten:
            self._entering += self._asking
            self._asking = []
            try:
                await self._round()
            except PeltonError as error:
                if not is_busy(error):
                    self._fail(error)
                    return
                _log.warning("queue %r: its limits can't be written yet: %s", self._queue.name, error)
                await self._clock.sleep(ASK_AGAIN_S)
            except BaseException as error:
                self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        entering, self._entering = [*self._entering, *self._asking], []
        self._asking = []
        self._unwritten.clear()
        for entrant in entering:
            if not entrant.answer.done():
                entrant.answer.set_exception(error)

    async def _round(self) -> None:
        """Try all jobs that ask, and write each record that changes, once."""
        entering = self._entering
        for entrant in entering:
            entrant.places = {} if entrant.answer.done() else self._places(entrant.job)
        limits = {place: limit for entrant in entering for place, limit in entrant.places.items()}
        await self._read(limits.keys() | self._unwritten)
        drafts: dict[str, SlotDraft] = {}
        passing: dict[str, list[_Entrant]] = {}
        for entrant in entering:
            for place in self._pass(entrant, drafts):
                passing.setdefault(place, []).append(entrant)
        # What is returned from now on is written next.
        returned = {place for place in self._unwritten if self._book.knows(place)}
        self._unwritten -= returned
        # There is no await between a draft and the sequence of the record that it was made from.
        writes = [
            self._put(
                place, self._draft(place, limits.get(place), drafts).record(), self._book.seq(place), passing, returned
            )
            for place in returned | passing.keys()
        ]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        self._entering = [entrant for entrant in entering if self._goes_on(entrant)]
        for answer in answers:
            if answer is not None:
                raise answer

    def _pass(self, entrant: _Entrant, drafts: dict[str, SlotDraft]) -> dict[str, JobLimit]:
        """Start a job in drafts, and return at which places; answer if it is held back."""
        missing = {place: limit for place, limit in entrant.places.items() if place not in entrant.got}
        if entrant.answer.done() or not all(map(self._book.knows, missing)):
            # Something has changed while the others were read.
            return {}
        held_back = self._try(entrant.seq, missing, drafts)
        if held_back is None:
            self._answer_if_through(entrant)
            return missing
        for place in entrant.held & drafts.keys():
            if self._book.holds(place, entrant.job):
                drafts[place].leave(entrant.seq)
        self._give_up(entrant)
        entrant.answer.set_result(held_back)
        return {}

    async def _read(self, places: Iterable[str]) -> None:
        unknown = [place for place in places if not self._book.knows(place)]
        for place, stored in zip(unknown, await asyncio.gather(*map(self.register.read, unknown)), strict=True):
            self._book.saw(place, stored.seq, stored.record or EMPTY, self._clock.boottime())
            self._lose(place)

    async def _put(
        self, place: str, record: SlotRecord, seen: int, passing: Mapping[str, list[_Entrant]], returned: set[str]
    ) -> None:
        """Write a record, and let jobs start that have all by that: those whose other records are late wait alone."""
        try:
            seq = await self.register.write(place, record, seen)
        except MovedError:
            self._book.mark_outdated(place)
            if place in returned:
                self._unwritten.add(place)
            return
        except PeltonError:
            # It may be written all the same: then what it says of this worker is to be put right.
            self._book.mark_outdated(place)
            self._unwritten.add(place)
            raise
        finally:
            self.changed.notify()
        self._book.saw(place, seq, record, self._clock.boottime())
        for entrant in passing.get(place, ()):
            entrant.got.add(place)
            if entrant.places[place].concurrency is not None:
                entrant.held.add(place)
                self._book.hold(place, entrant.job)
            self._answer_if_through(entrant)

    def _answer_if_through(self, entrant: _Entrant) -> None:
        if entrant.got >= entrant.places.keys() and not entrant.answer.done():
            self.slots[entrant.seq], self._holders[entrant.seq] = tuple(entrant.held), entrant.job
            entrant.answer.set_result(None)

    def _kept_for(self, record: SlotRecord) -> int:
        return record.ttl(self._clock.now())

    def _goes_on(self, entrant: _Entrant) -> bool:
        """Return whether a job is to be tried again."""
        if entrant.answer.done():
            if entrant.answer.cancelled() or self._holders.get(entrant.seq) is not entrant.job:
                # Nobody waits for it any more, or it is over by now.
                self._give_up(entrant)
            return False
        # What a rate limit granted is given back: a rate is charged when it grants, so it must be the last to grant.
        entrant.got = {place for place, limit in entrant.places.items() if place in entrant.got and limit.rate is None}
        return True

    def _give_up(self, entrant: _Entrant) -> None:
        self._return(entrant.job, entrant.held)
        entrant.got, entrant.held = set(), set()

    async def close(self) -> None:
        """Write what was returned, if the store answers."""
        await end_tasks(self._watching)
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_LAST_WRITES_S)
            await end_tasks(self._task)
