"""Errors of elections."""

from pelton.api.errors import PeltonError, says


class ElectionError(PeltonError):
    """An election failed; `election` names it."""

    def __init__(self, election: str, text: str) -> None:
        self.election = election
        super().__init__(text)


@says(
    "election {election!r}: the term with token {token} was lost: {reason}; another candidate may lead by now, so "
    "write nothing; campaign again"
)
class TermLostError(ElectionError):
    """The term with the fencing `token` was lost: another candidate may lead by now, so stop."""

    election: str
    token: int
    reason: str
