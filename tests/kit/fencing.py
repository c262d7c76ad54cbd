"""A resource protected by fencing tokens: it refuses a holder that was replaced, and records all requests."""

from __future__ import annotations

from typing import NamedTuple


class FencedWrite(NamedTuple):
    """One write to a resource: by whom, with which token, when, and whether it was accepted."""

    who: str
    token: int
    at: float
    is_taken: bool


class FencedRegister:
    """A register that accepts a write only from the newest holder it has seen."""

    def __init__(self) -> None:
        """Create a register that has seen no holder."""
        self.highest = 0
        self.writes: list[FencedWrite] = []

    def write(self, who: str, token: int, at: float = 0.0) -> bool:
        """Write, and return whether the token was accepted: no newer one has been seen."""
        is_taken = token >= self.highest
        self.highest = max(self.highest, token)
        self.writes.append(FencedWrite(who, token, at, is_taken))
        return is_taken

    def owners(self) -> dict[int, set[str]]:
        """Return the writers with each token: never more than one."""
        found: dict[int, set[str]] = {}
        for write in self.writes:
            found.setdefault(write.token, set()).add(write.who)
        return found

    def check(self) -> None:
        """Raise AssertionError if two shared a token, or a write was accepted after one with a newer token."""
        for token, owners in self.owners().items():
            assert len(owners) == 1, f"token {token} was given to {sorted(owners)}"
        taken = [write.token for write in self.writes if write.is_taken]
        assert taken == sorted(taken), f"accepted out of order: {taken}"
