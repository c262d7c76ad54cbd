"""Claims: how a consumer with a limit per subject tracks the messages it has passed; see ``log.py``.

All statements here are for many subjects: a delivery or a settlement costs a few of them, however many subjects it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from pelton.storage import Database, decoded, text

_encode: Final = msgspec.json.Encoder().encode
_FIRST_PARKED: Final = (
    "SELECT seq FROM claims p WHERE p.consumer=?1+0 AND p.subject=value AND p.held=0 ORDER BY seq LIMIT 1"
)
# Held claims are the oldest of their subject, so this reads only them, however many wait.
_OF_SUBJECTS: Final = (
    "SELECT value, (SELECT count(*) FROM claims h WHERE h.consumer=?1 AND h.subject=value "
    f"AND h.seq<ifnull(({_FIRST_PARKED}), {(1 << 63) - 1})), EXISTS({_FIRST_PARKED}) FROM json_each(?2) "
    "WHERE EXISTS(SELECT 1 FROM claims e WHERE e.consumer=?1+0 AND e.subject=value)"
)
_RANK: Final = "(SELECT rank FROM claims r WHERE r.consumer=?1 AND r.subject=value AND r.seq={})"
_NEXT: Final = (
    f"SELECT value, ({_FIRST_PARKED}), EXISTS({_FIRST_PARKED} OFFSET 1), {_RANK.format(f'({_FIRST_PARKED})')} "
    "FROM json_each(?2)"
)
_DELETE: Final = "DELETE FROM claims WHERE consumer=? AND subject=? AND seq=?"


class Claim(NamedTuple):
    """A row of ``claims``."""

    subject: str
    seq: int
    held: int


class SubjectClaims(msgspec.Struct, gc=False):
    """How many claims of a subject are held, and whether others wait behind them."""

    held: int = 0
    has_parked: bool = False


class _FoundClaims(msgspec.Struct, frozen=True):
    """What is found of a subject that has claims."""

    subject: str
    held: int
    has_parked: int


class _NextClaim(NamedTuple):
    """The oldest claim of a subject that waits, whether there are more, and the rank of its message."""

    subject: str
    seq: int
    has_more: int
    rank: int


class ClaimTable:
    """The claims of one consumer: those in the open transaction, of which some are known without a look.

    ``limit`` is how many of a subject may be held; the configuration sets it. ``turns`` is the last turn that was
    given; the consumer stores it.
    """

    def __init__(self, database: Database, consumer: int) -> None:
        self._db = database
        self._consumer = consumer
        self._known: dict[str, SubjectClaims] = {}
        self.limit = 0
        self.turns: int = 0

    def forget(self) -> None:
        """Forget what is known: another process may have changed it."""
        self._known.clear()

    def learn(self, subjects: Iterable[str]) -> None:
        """Look up the claims of subjects, those that are not known in one statement."""
        unknown = {subject: SubjectClaims() for subject in subjects if subject not in self._known}
        if not unknown:
            return
        for found in decoded(_FoundClaims, self._of_each(_OF_SUBJECTS, unknown)):
            unknown[found.subject] = SubjectClaims(found.held, bool(found.has_parked))
        self._known.update(unknown)

    def of(self, subject: str) -> SubjectClaims:
        found = self._known.get(subject)
        if found is None:
            self.learn((subject,))
            found = self._known[subject]
        return found

    def claim_all(self, subjects: Sequence[str], most: int) -> list[bool]:
        """Claim subjects in order, until ``most`` of the claims are held; return for each claim whether it is held.

        Those that are not held wait behind others of their subject.
        """
        self.learn(subjects)
        known, limit, held = self._known, self.limit, list[bool]()
        for subject in subjects:
            if not most:
                break
            claims = known[subject]
            is_held = claims.held < limit and not claims.has_parked
            if is_held:
                claims.held += 1
                most -= 1
            else:
                claims.has_parked = True
            held.append(is_held)
        return held

    def join(self, messages: Sequence[tuple[int, str, int]]) -> int:
        """Claim the subjects of messages (sequence, subject, rank) in order; return how many stand in line for it.

        The others wait behind those of their subject.
        """
        held = self.claim_all([subject for _, subject, _ in messages], len(messages))
        rows = [
            (self._consumer, subject, seq, int(is_held), rank)
            for (seq, subject, rank), is_held in zip(messages, held, strict=True)
        ]
        # In the order of the table, so that each of its pages is written once.
        self._db.executemany("INSERT INTO claims VALUES(?, ?, ?, ?, ?)", sorted(rows))
        return self._line_up([(seq, subject, rank) for _, subject, seq, is_held, rank in rows if is_held])

    def _line_up(self, messages: Sequence[tuple[int, str, int]]) -> int:
        """Let held messages wait for their turns, behind all that do; return their number."""
        first, self.turns = self.turns + 1, self.turns + len(messages)
        rows = [(self._consumer, *message, turn) for turn, message in enumerate(messages, first)]
        self._db.executemany("INSERT INTO ready VALUES(?, ?, ?, ?, ?)", rows)
        return len(rows)

    def release(self, settled: Collection[tuple[str, int]]) -> None:
        """Give up the claims of settled messages, and make the next of their subjects ready."""
        if not settled:
            return
        self._db.executemany(_DELETE, [(self._consumer, subject, seq) for subject, seq in settled])
        known = self._known
        for subject, _ in settled:
            if subject in known:
                known[subject].held -= 1
        # Without what was just deleted.
        self.learn(subject for subject, _ in settled)
        freed = {subject: known[subject] for subject, _ in settled}
        self._promote(freed, [subject for subject, _ in settled])
        for subject, claims in freed.items():
            if not (claims.held or claims.has_parked):
                del known[subject]

    def drop_parked(self, parked: Collection[tuple[str, int]]) -> None:
        """Remove claims of messages that wait behind others."""
        self._db.executemany(_DELETE, [(self._consumer, subject, seq) for subject, seq in parked])
        for subject, _ in parked:
            self._known.pop(subject, None)

    def promote_all(self) -> None:
        """Make ready whatever a larger limit allows."""
        sql = "SELECT DISTINCT subject FROM claims WHERE consumer=? AND held=0"
        subjects = [text(subject) for (subject,) in self._db.execute(sql, (self._consumer,)).fetchall()]
        self.learn(subjects)
        self._promote({subject: self._known[subject] for subject in subjects}, ())

    def _promote(self, freed: dict[str, SubjectClaims], settled: Sequence[str]) -> None:
        """Make ready what the limit allows, in the order in which messages of these subjects were ``settled``."""
        rounds = list[list[_NextClaim]]()
        while free := [name for name, claims in freed.items() if claims.has_parked and claims.held < self.limit]:
            found = decoded(_NextClaim, self._of_each(_NEXT, free))
            self._db.executemany(
                "UPDATE claims SET held=1 WHERE consumer=? AND subject=? AND seq=?",
                [(self._consumer, subject, seq) for subject, seq, _, _ in found],
            )
            rounds.append(found)
            for subject, _, has_more, _ in found:
                freed[subject].held += 1
                freed[subject].has_parked = bool(has_more)
        if len(rounds) > 1:
            rounds = [_in_order(rounds, settled)]
        for found in rounds:
            self._line_up([(claim.seq, claim.subject, claim.rank) for claim in found])

    def _of_each(self, sql: str, subjects: Iterable[str]) -> list[tuple[object, ...]]:
        """Run a statement for each of many subjects at once."""
        return self._db.execute(sql, (self._consumer, _encode(list(subjects)).decode())).fetchall()


def _in_order(rounds: Sequence[Sequence[_NextClaim]], settled: Sequence[str]) -> list[_NextClaim]:
    """Return claims as if each message had been settled by itself."""
    waiting: dict[str, list[_NextClaim]] = {}
    for found in rounds:
        for claim in found:
            waiting.setdefault(claim.subject, []).append(claim)
    order = [waiting[subject].pop(0) for subject in settled if waiting.get(subject)]
    return [*order, *(claim for left in waiting.values() for claim in left)]
