"""What the open transaction did to a stream, for those who have to act on it before it ends."""

from __future__ import annotations

from pelton.api import Outgoing
from pelton.storage import Removed


class StreamEffects:
    """Collected while a stream is written; whoever owns the transaction takes them (``engine/session``)."""

    def __init__(self) -> None:
        # Subjects that got messages, and the removals that others were told of, since the last look.
        self.arrived: set[str] = set()
        self.known_removals = 0
        # Subjects that were rolled up; an empty text for all of them.
        self.rolled_up: set[str] = set()
        # Messages to publish, in the order in which the stored ones came.
        self.republished: list[Outgoing] = []
        # What was removed, if a source or mirror has to know; and whether all of it was, at once.
        self.removed: list[Removed] = []
        self.emptied = False

    def clear(self) -> None:
        """Forget all: the transaction was rolled back."""
        self.arrived.clear()
        self.rolled_up.clear()
        self.republished.clear()
        self.take_removed()

    def take_removed(self) -> tuple[list[Removed], bool]:
        """Return what was removed since the last call, and whether the stream was emptied."""
        taken = self.removed, self.emptied
        self.removed, self.emptied = [], False
        return taken
