"""What a worker knows of the keys, and when it can act on them. Pure: time is passed in.

Two watches feed it: the jobs (one message per key that has any, then every new one), and the records of the keys. Its
knowledge may be outdated; every action is conditional on the record not having changed.

No wall clock is trusted: a held record may be taken over when this worker has seen it unchanged for a whole lease on
its own clock. Its holder counts from before it wrote the record, and gives up earlier.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from pelton.queue.keys.record import KeyRecord
from pelton.runtime import Random

_IDLE_KEYS: Final = 65_536
_SPREAD: Final = 64
_RESCUE_S: Final = 5.0


class Chance(NamedTuple):
    """A key on which this worker may be able to act: ``seq`` and ``hold`` are its record as far as it knows."""

    key: str
    seq: int
    hold: KeyRecord | None


class _Planned(NamedTuple):
    """When a key is to be looked at; the first is the earliest."""

    due: float
    key: str


class _Key:
    """What is known of a key. ``due``: when to act on it, ``is_ours``: whether this worker is acting on it."""

    __slots__ = ("due", "hold", "is_ours", "last_job", "seq")

    def __init__(self) -> None:
        self.last_job = 0
        self.seq = 0
        self.hold: KeyRecord | None = None
        self.due = inf
        self.is_ours = False

    @property
    def has_work(self) -> bool:
        return self.last_job > (self.hold.done if self.hold else 0)


class KeyTable:
    """The keys of a queue, as one worker sees them. ``lease`` in seconds, times in seconds since boot."""

    def __init__(self, lease: float, random: Random) -> None:
        self._lease = lease
        self._random = random
        self._keys: dict[str, _Key] = {}
        # Taken from its beginning again and again, which is slow with a dict.
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._later: list[_Planned] = []
        self._idle: OrderedDict[str, None] = OrderedDict()

    def saw_job(self, key: str, seq: int, now: float) -> bool:
        """Note that a job was stored; return whether there is something to do now."""
        entry = self._entry(key)
        entry.last_job = max(entry.last_job, seq)
        if entry.hold is None or entry.hold.state == "free":
            self._plan(key, entry, now if entry.has_work else inf, now)
        return key in self._ready

    def saw_record(self, key: str, seq: int, hold: KeyRecord | None, now: float, age: float = 0.0) -> bool:
        """Note a key's record, ``age`` seconds after it was written; return whether there is something to do now.

        A record that is older than the known one is ignored.
        """
        entry = self._entry(key)
        if seq < entry.seq or (seq == entry.seq and hold is not None and entry.hold is not None):
            return False
        entry.seq, entry.hold = seq, hold
        self._plan(key, entry, self._due(entry, now, age), now)
        return key in self._ready

    def is_gone(self, key: str, now: float) -> None:
        """Note that a key has no record, or no longer has one."""
        entry = self._entry(key)
        entry.seq, entry.hold = 0, None
        self._plan(key, entry, now if entry.has_work else inf, now)

    def has_none(self, key: str, last_job: int) -> None:
        """Note that a key has no job, unless one came after ``last_job``."""
        entry = self._entry(key)
        if entry.last_job == last_job:
            entry.last_job = 0

    def last_job(self, key: str) -> int:
        """Return the last job seen for a key."""
        return self._entry(key).last_job

    def take(self, limit: int, now: float) -> list[Chance]:
        """Return what can be done, reserved for the caller until :meth:`done`.

        The choice among the oldest is random, so that workers with the same view do not all try the same key.
        """
        while self._later and self._later[0].due <= now:
            _, key = heapq.heappop(self._later)
            entry = self._keys.get(key)
            if entry is not None and entry.due <= now and not entry.is_ours:
                self._ready[key] = None
        oldest = list(islice(self._ready, max(limit, _SPREAD)))
        found = []
        for key in self._random.sample(oldest, min(limit, len(oldest))):
            entry = self._keys[key]
            entry.is_ours = True
            del self._ready[key]
            found.append(Chance(key, entry.seq, entry.hold))
        return found

    def done(self, key: str, now: float, again: float = 0.0, changed: int = 0) -> None:
        """Release a key to any worker.

        This one does not retry before ``again`` seconds unless the record changes, to ``changed`` if given, which may
        already be known.
        """
        entry = self._entry(key)
        entry.is_ours = False
        if changed and entry.seq >= changed:
            again = 0.0
        self._plan(key, entry, max(entry.due, now + again), now)

    def next_due(self) -> float:
        """Return when to check next, if nothing happens; infinity for never."""
        return self._later[0].due if self._later else inf

    def _entry(self, key: str) -> _Key:
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        return entry

    def _due(self, entry: _Key, now: float, age: float) -> float:
        hold = entry.hold
        if hold is None or hold.state == "free":
            return now if entry.has_work else inf
        if hold.state == "held":
            return now + self._lease
        if hold.state == "settled":
            return now + min(self._lease, _RESCUE_S)
        # A delay guarantees nothing about other workers: here the server's clock is good enough.
        return now + max(hold.delay_ns / 1e9 - age, 0.0)

    def _plan(self, key: str, entry: _Key, due: float, now: float) -> None:
        entry.due = due
        self._ready.pop(key, None)
        self._idle.pop(key, None)
        if entry.is_ours:
            return
        if due <= now:
            self._ready[key] = None
        elif due < inf:
            heapq.heappush(self._later, _Planned(due, key))
        else:
            self._idle[key] = None
            if len(self._idle) > _IDLE_KEYS:
                oldest, _ = self._idle.popitem(last=False)
                del self._keys[oldest]
