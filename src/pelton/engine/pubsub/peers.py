"""The interface to the other processes that have the store open."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """The openers of the store, by name; ``polled``: they cannot wake each other, so they poll."""

    name: str
    polled: bool

    def is_alive(self, name: str) -> bool: ...
    def wake(self, name: str) -> None: ...


class NoPeers:
    """Peers for a bus that has no other processes."""

    name = "alone"
    polled = False

    def is_alive(self, name: str) -> bool:
        return True

    def wake(self, name: str) -> None:
        """Do nothing: no process waits."""
