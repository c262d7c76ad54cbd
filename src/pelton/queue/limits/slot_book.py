"""What one worker knows of the records of limits, and the slots that it holds. Pure: the time is passed in.

What it knows may be outdated; whatever it writes is conditional on the record not having changed. No wall clock of
another machine decides who has died: a worker's part counts as dead when it was seen unchanged for a whole lease, or
when its process, which is one of this machine, has ended.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from pelton.queue.model.limits import EMPTY, UNKNOWN_OFFSET, SlotDraft, SlotRecord
from pelton.runtime import LOOK_S, ProcessWatch

if TYPE_CHECKING:
    from pelton.queue.model.limits import JobLimit
    from pelton.queue.model.records import AttemptRecords
    from pelton.runtime import WallOffset

_MOST_KNOWN: Final = 16_384
_FIRST_BETWEEN_S: Final = 0.02
_SHORTEST_BETWEEN_S: Final = 0.002


class SlotJob(Protocol):
    """A job that needs slots."""

    records: AttemptRecords

    def lose(self, reason: str) -> None:
        """Note that its lease is lost."""
        ...


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
        if freed := len(_held(known.record) - _held(record)):
            known.between += 0.2 * ((now - known.freed) / freed - known.between)
            known.freed = now
        known.seq, known.record, known.is_outdated = seq, record, False
        before = known.parts
        known.parts = {}
        for worker, slots in record.workers.items():
            seen = before.get(worker)
            known.parts[worker] = seen if seen is not None and seen[0] == slots.beat else (slots.beat, now)
        return True

    def outdated(self, place: str) -> None:
        """Note that a record has changed; what was seen of its workers is kept."""
        if (known := self._known.get(place)) is not None:
            known.is_outdated = True

    def knows(self, place: str) -> bool:
        """Whether the record of a place is known."""
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

    def lost(self, place: str) -> list[SlotJob]:
        """Return jobs whose slots others have dropped: their leases had ended, as far as those could tell."""
        mine, known = self._mine.get(place), self._known[place]
        if not mine:
            return []
        kept = known.record.workers.get(self._worker)
        left = set(kept.jobs) if kept is not None else set()
        return [mine[seq] for seq in list(mine) if seq not in left]


def _held(record: SlotRecord) -> set[int]:
    return {job for slots in record.workers.values() for job in slots.jobs}
