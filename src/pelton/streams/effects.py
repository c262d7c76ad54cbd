"""The effects of the open transaction on a stream, for code that acts on them before it ends."""

from __future__ import annotations

from typing import Final

from pelton.api import Outgoing
from pelton.storage import Removed

# Pulls that wait for some subjects are woken for all if more have arrived: to look for theirs would cost more.
MANY: Final = 64


class StreamEffects:
    """Collected while a stream is written; the owner of the transaction takes them (``engine/session``)."""

    emptied: bool

    def __init__(self) -> None:
        # Subjects that got messages (not each of them, if they are many), and the number of removals, as of the last
        # announcement to others.
        self.arrived: set[str] = set()
        self.known_removals = 0
        # Subjects that were rolled up; an empty text means all.
        self.rolled_up: set[str] = set()
        # Messages to republish, in the order in which they were stored.
        self.republished: list[Outgoing] = []
        # Removed messages, if a source or mirror needs them; and whether the stream was emptied at once.
        self.removed: list[Removed] = []
        self.emptied = False

    def clear(self) -> None:
        """Forget everything after a rollback."""
        self.arrived.clear()
        self.rolled_up.clear()
        self.republished.clear()
        self.take_removed()

    def take_removed(self) -> tuple[list[Removed], bool]:
        """Return what was removed since the last call, and whether the stream was emptied."""
        taken = self.removed, self.emptied
        self.removed, self.emptied = [], False
        return taken
