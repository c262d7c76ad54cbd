"""How many jobs a worker asks for: one for each free slot, and a few more when jobs are short. Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import PullRequest

_AHEAD_S: Final = 0.02
_MOST_AHEAD: Final = 512
# In an exclusive queue: what shares its key with a job that is held is kept from other workers, too.
_MOST_AHEAD_KEYED: Final = 256
_UNKNOWN_JOB_S: Final = 1.0
_LONGEST_PULL_S: Final = 10.0


class Appetite:
    """What a worker with ``concurrency`` slots asks for; ``lease`` in seconds, ``exclusive``: the queue has keys."""

    def __init__(self, concurrency: int, lease: float, *, exclusive: bool) -> None:
        self._concurrency = concurrency
        self._lease = lease
        self._most_ahead = _MOST_AHEAD_KEYED if exclusive else _MOST_AHEAD
        self._job_seconds = _UNKNOWN_JOB_S

    def ran(self, seconds: float) -> None:
        """Note how long a job took."""
        self._job_seconds += 0.1 * (seconds - self._job_seconds)

    def room(self, running: int, waiting: int) -> int:
        """Return for how many more jobs there is room."""
        ahead = min(int(self._concurrency * _AHEAD_S / self._job_seconds), self._most_ahead)
        return self._concurrency - running + ahead - waiting

    def wanted(self, running: int, waiting: int) -> int:
        """Return how many jobs are worth asking for."""
        room = self.room(running, waiting)
        # Asking for a few at a time would cost a transaction each; half of the free slots are worth one.
        return room if room >= waiting else 0

    def request(self, wanted: int) -> PullRequest:
        """Return the request of a pull that waits for so many."""
        # For no longer than part of a lease: a lease counts from when the pull was requested.
        return PullRequest(batch=wanted, expires_ns=int(min(_LONGEST_PULL_S, self._lease / 3) * 1e9))
