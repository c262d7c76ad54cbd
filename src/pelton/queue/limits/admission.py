"""Admission of jobs to a queue with limits: a job starts when it has a slot of every limit that it is under.

Design: Jobs ask just before they start, and those that ask, or return slots, while a write is under way are written
together: one write a record. A job needs slots at up to four places; it is only tried when all of them look free, and
what it got at some of them is returned when another one refuses. Concurrency is exact, because every record is changed
under the condition that nobody else has changed it; of a rate, a start that came to nothing stays used.

A slot is held for as long as the job's lease: both are extended together (``slot_extender.py``), and returned when the
job is settled, given back or lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pelton.api import PeltonError, WrongLastSequenceError
from pelton.queue.backing.outage import is_busy
from pelton.queue.limits.slot_book import SlotBook, SlotJob
from pelton.queue.limits.slot_ledger import SlotLedger
from pelton.queue.limits.slot_watch import SlotWatch
from pelton.queue.model.limits import WHOLE_QUEUE, JobLimit, places_of
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.model.slots import SlotDraft, SlotRecord

_log: Final = logging.getLogger("pelton.queue")
_ASK_AGAIN_S: Final = 0.5
_LAST_WRITES_S: Final = 5.0

J = TypeVar("J", bound=SlotJob)


class HeldBack(NamedTuple):
    """Why a job may not start now: the limit of which ``place``.

    ``wait``: for how many seconds; infinity: until a slot is returned.
    """

    place: str
    limit: JobLimit
    wait: float


class _Entrant:
    """A job that asks: ``places`` is what it needs, ``got`` what it has of that."""

    __slots__ = ("answer", "got", "job", "places", "seq")

    def __init__(self, job: SlotJob, answer: asyncio.Future[HeldBack | None]) -> None:
        self.job = job
        self.seq = job.records.delivered.seq
        self.answer = answer
        self.places: dict[str, JobLimit] = {}
        self.got: set[str] = set()


class Admission:
    """Decides which jobs of one worker may start."""

    def __init__(self, queue: QueueContext, worker: str) -> None:
        self._queue = queue
        self._clock = queue.clock
        self._ledger = SlotLedger(queue.backend, queue.names)
        self._book = SlotBook(worker, queue.lease)
        self._limits: dict[str, JobLimit] = {}
        # The places at which jobs hold slots, by their sequences; the keeper of leases reads it.
        self.slots: dict[int, tuple[str, ...]] = {}
        # Something may be different: a limit, a slot, a record.
        self.changed = Signal()
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

    @property
    def is_on(self) -> bool:
        """Whether the queue has any limit."""
        return bool(self._limits)

    def heed(self, limit: JobLimit, *, over: bool) -> None:
        """Note a limit, which replaces an earlier one of its scope; ``over`` takes it away."""
        if over:
            self._limits.pop(limit.scope, None)
        else:
            self._limits[limit.scope] = limit
        if self._limits and self._watching is None:
            follow = SlotWatch(self._queue, self._saw).follow()
            self._watching = self._queue.runtime.spawn(follow, f"pelton {self._queue.name} limits")
        self.changed.notify()

    def _saw(self, place: str, seq: int, record: SlotRecord) -> None:
        if self._book.saw(place, seq, record, self._clock.boottime()):
            self._lose(place)
            self.changed.notify()

    def _places(self, job: SlotJob) -> dict[str, JobLimit]:
        envelope = job.records.envelope
        return places_of(self._limits.values(), envelope.job, envelope.key)

    # --- looking

    def may_start(self, jobs: Iterable[J]) -> list[tuple[J, HeldBack | None]]:
        """Return for each job whether it may start beside those before it, as far as this worker knows."""
        drafts: dict[str, SlotDraft] = {}
        return [(job, self._try(job.records.delivered.seq, self._places(job), drafts)) for job in jobs]

    def room(self) -> int | None:
        """Return how many more jobs the limit of the whole queue lets start now; None if it says nothing."""
        limit = self.whole
        if limit is None or not self._book.knows(WHOLE_QUEUE):
            return None
        return self._draft(WHOLE_QUEUE, limit, {}).room

    @property
    def whole(self) -> JobLimit | None:
        """The limit of the whole queue."""
        return self._limits.get(WHOLE_QUEUE)

    def next_death(self, place: str) -> float:
        """Return in how many seconds the slots of a worker are free that may have died; infinity for none."""
        return self._book.next_death(place, self._clock.boottime())

    def outdated(self, place: str) -> None:
        """Have a record read again: this worker may have missed a change."""
        self._book.outdated(place)

    def _draft(self, place: str, limit: JobLimit | None, drafts: dict[str, SlotDraft]) -> SlotDraft:
        draft = drafts.get(place)
        if draft is None:
            draft = self._book.draft(place, limit, self._clock.boottime(), self._clock.now())
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
        if job.records.delivered.seq in self.slots or not self._places(job):
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
        """Return the slots of jobs that are over."""
        for job in jobs:
            seq = job.records.delivered.seq
            self._return(seq, self.slots.pop(seq, ()))

    def seconds_between(self, held_back: HeldBack) -> float:
        """Return about how many seconds pass from one start to the next at a place where a job is held back."""
        limit = held_back.limit
        if held_back.wait < inf:
            return limit.rate.interval_ns / 1e9 if limit.rate is not None else 0.0
        return self._book.seconds_between(held_back.place, self._clock.boottime())

    def _return(self, seq: int, places: Iterable[str]) -> None:
        for place in places:
            self._book.drop(place, seq)
            self._unwritten.add(place)
        if self._unwritten:
            self._write()

    def _lose(self, place: str) -> None:
        """Tell jobs whose slots others have dropped."""
        for job in self._book.lost(place):
            self._book.drop(place, job.records.delivered.seq)
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
                await self._clock.sleep(_ASK_AGAIN_S)
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
        passing = {entrant: self._pass(entrant, drafts) for entrant in entering}
        # What is returned from now on is written next.
        returned = {place for place in self._unwritten if self._book.knows(place)}
        self._unwritten -= returned
        places = returned | {place for some in passing.values() for place in some}
        written, failure = await self._put({place: self._draft(place, limits.get(place), drafts) for place in places})
        self._unwritten |= returned - written
        self._entering = [entrant for entrant, some in passing.items() if self._goes_on(entrant, some, written)]
        if failure is not None:
            raise failure

    def _pass(self, entrant: _Entrant, drafts: dict[str, SlotDraft]) -> dict[str, JobLimit]:
        """Start a job in drafts, and return at which places; answer if it is held back."""
        missing = {place: limit for place, limit in entrant.places.items() if place not in entrant.got}
        if not all(map(self._book.knows, missing)):
            # Something has changed while the others were read.
            return {}
        held_back = self._try(entrant.seq, missing, drafts)
        if held_back is None:
            return missing
        for place in entrant.got & drafts.keys():
            drafts[place].leave(entrant.seq)
        self._return(entrant.seq, entrant.got)
        entrant.got.clear()
        entrant.answer.set_result(held_back)
        return {}

    def _goes_on(self, entrant: _Entrant, passed: dict[str, JobLimit], written: set[str]) -> bool:
        """Note what was written for a job, and answer if that is all; return whether it is to be tried again."""
        for place, limit in passed.items():
            if place in written:
                entrant.got.add(place)
                if limit.concurrency is not None:
                    self._book.hold(place, entrant.seq, entrant.job)
        if entrant.answer.done():
            # It was held back, or nobody waits for it any more.
            self._return(entrant.seq, entrant.got)
            return False
        if entrant.got < entrant.places.keys():
            return True
        self._admit(entrant)
        return False

    def _admit(self, entrant: _Entrant) -> None:
        places = entrant.places.items()
        self.slots[entrant.seq] = tuple(place for place, limit in places if limit.concurrency is not None)
        entrant.answer.set_result(None)

    async def _read(self, places: Iterable[str]) -> None:
        unknown = [place for place in places if not self._book.knows(place)]
        for place, stored in zip(unknown, await asyncio.gather(*map(self._ledger.read, unknown)), strict=True):
            self._book.saw(place, stored.seq, stored.record, self._clock.boottime())
            self._lose(place)

    async def _put(self, drafts: dict[str, SlotDraft]) -> tuple[set[str], PeltonError | None]:
        """Write records; return the places of those that were, and what went wrong with others."""
        now = self._clock.now()
        records = {place: draft.record() for place, draft in drafts.items()}
        writes = (self._ledger.write(place, record, self._book.seq(place), now) for place, record in records.items())
        answers = await asyncio.gather(*writes, return_exceptions=True)
        written, failure = set[str](), None
        for (place, record), answer in zip(records.items(), answers, strict=True):
            if isinstance(answer, int):
                self._book.saw(place, answer, record, self._clock.boottime())
                written.add(place)
                continue
            # Another worker has changed it; or it may be written all the same.
            self._book.outdated(place)
            if not isinstance(answer, WrongLastSequenceError):
                if not isinstance(answer, PeltonError):
                    raise answer
                failure = answer
        self.changed.notify()
        return written, failure

    async def close(self) -> None:
        """Write what was returned, if the store answers."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_LAST_WRITES_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
