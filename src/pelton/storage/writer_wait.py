"""How one connection waits for the write lock: pure, by the seconds of the monotonic clock.

SQLite's lock has no queue, so a connection tries again and again. Each try costs CPU and seldom comes at the right
moment, so the pauses grow; a commit of another process ends a pause early. Whoever has waited for
:data:`PRIORITY_AFTER_S` waits with priority (``writer_priority.py``). Of those, the one whose turn is next tries often:
the others stand back, and look again now and then.
"""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 0.001
LONGEST_PAUSE_S: Final = 0.004
PRIORITY_AFTER_S: Final = 0.004


class WriterWait:
    """One wait after the other; ``patience`` (seconds) is the longest, ``since`` when the present one began."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._pause = FIRST_PAUSE_S
        self.since: float | None = None

    def missed(self, now: float, *, is_next: bool) -> float:
        """Note that the lock was not free; return how many seconds to pause. ``is_next``: nobody else had a try."""
        if self.since is None:
            self.since = now
        if self.has_priority(now):
            return FIRST_PAUSE_S if is_next else LONGEST_PAUSE_S
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
        return pause

    def has_priority(self, now: float) -> bool:
        """Whether this wait is long enough for others to stand back."""
        return self.since is not None and now - self.since >= PRIORITY_AFTER_S

    def is_over(self, now: float) -> bool:
        """Whether it has taken longer than anyone should wait."""
        return self.since is not None and now - self.since > self._patience

    def end(self) -> None:
        """Begin anew: the lock was taken, or is no longer wanted."""
        self.since, self._pause = None, FIRST_PAUSE_S
