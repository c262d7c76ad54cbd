"""A term: the time in which this candidate, and no other, leads."""

from __future__ import annotations

import asyncio

from pelton.api import TermLostError
from pelton.locks.candidate_runner import CandidateThread


class Term:
    """A term that was won.

    ``token`` is its fencing token: larger than those of all terms before it. Send it along with your writes to other
    systems, and let them refuse a smaller one than they have seen.
    """

    def __init__(self, election: str, name: str, token: int, office: CandidateThread) -> None:
        self.election = election
        self.name = name
        self.token = token
        self._office = office
        self._reason = ""
        self._ended = asyncio.Event()

    @property
    def is_held(self) -> bool:
        """Whether it continues, by the clock, from any thread: even if the event loop is blocked."""
        if not self._reason and not self._office.holds(self.token):
            # Once lost it stays lost, whatever is confirmed later.
            self._reason = "it could not be renewed in time"
        return not self._reason

    @property
    def reason(self) -> str:
        """Why it ended; empty while it continues."""
        return self._reason

    def check(self) -> None:
        """Raise TermLostError unless the term continues; for steps of long work on a thread."""
        if not self.is_held:
            raise TermLostError(self.election, self.token, self._reason)

    async def lost(self) -> str:
        """Wait for the end of the term, and return why."""
        self._office.check_loop()
        await self._ended.wait()
        return self._reason

    def end(self, reason: str) -> None:
        """Note that it ended; called by the candidate."""
        self._reason = self._reason or reason
        self._ended.set()

    def __repr__(self) -> str:
        return f"<term {self.token} of {self.name!r} in election {self.election!r}{', lost' * bool(self._reason)}>"
