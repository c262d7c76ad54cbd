"""How many jobs a worker asks for: one for each free slot, and a few more when jobs are short. Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import PullRequest

_AHEAD_S: Final = 0.02
_MOST_AHEAD: Final = 512
_UNKNOWN_JOB_S: Final = 1.0
_LONGEST_PULL_S: Final = 10.0


class Appetite:
    """What a worker with ``concurrency`` slots asks for; ``lease`` in seconds."""

    def __init__(self, concurrency: int, lease: float) -> None:
        self._concurrency = concurrency
        self._lease = lease
        self._job_seconds = _UNKNOWN_JOB_S

    def ran(self, seconds: float) -> None:
        """Note how long a job took."""
        self._job_seconds += 0.1 * (seconds - self._job_seconds)

    def room(self, running: int, waiting: int) -> int:
        """Return for how many more jobs there is room."""
        ahead = min(int(self._concurrency * _AHEAD_S / self._job_seconds), _MOST_AHEAD)
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
