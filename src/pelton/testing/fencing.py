"""What fencing tokens are for: a resource that refuses a holder who was replaced, and writes down all that is asked."""

from __future__ import annotations

from typing import NamedTuple


class FencedWrite(NamedTuple):
    """One write that was asked of a resource: by whom, with which token, when, and whether it was taken."""

    who: str
    token: int
    at: float
    is_taken: bool


class FencedRegister:
    """A register that takes a write only from the newest holder it has heard of."""

    def __init__(self) -> None:
        """A register that has heard of nobody."""
        self.highest = 0
        self.writes: list[FencedWrite] = []

    def write(self, who: str, token: int, at: float = 0.0) -> bool:
        """Write, and return whether the token was good: none that is newer has been seen."""
        is_taken = token >= self.highest
        self.highest = max(self.highest, token)
        self.writes.append(FencedWrite(who, token, at, is_taken))
        return is_taken

    def owners(self) -> dict[int, set[str]]:
        """Return who wrote with each token: never more than one."""
        found: dict[int, set[str]] = {}
        for write in self.writes:
            found.setdefault(write.token, set()).add(write.who)
        return found

    def check(self) -> None:
        """Raise AssertionError where two shared a token, or a write was taken after one with a newer token."""
        for token, owners in self.owners().items():
            assert len(owners) == 1, f"token {token} was given to {sorted(owners)}"
        taken = [write.token for write in self.writes if write.is_taken]
        assert taken == sorted(taken), f"taken out of order: {taken}"
