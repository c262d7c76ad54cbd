"""Interest retention: a message stays while some consumer wants it.

Design: A consumer wants a message that its filters match until it has settled it: one ahead of its cursor, one
delivered and not settled (``pending``), one that waits behind it (``ready``, ``claims``), and one whose
deliveries are ``exhausted``: that one nobody will settle any more, so it stays to be looked at, as on a NATS server.
Without acks, delivered is settled.

A message that nobody wants when it is published is never stored: it takes a sequence and is gone. A stored one is
looked at again whenever somebody may have ceased to want it: its consumer settled it, changed its filters, or was
deleted; or the stream only now came to keep messages by interest. That happens in the transaction in which it
ceased, so none stays behind that nobody wants, whichever process did it and whatever was rolled back.

Nothing counts the interested: all is asked of the rows that consumers keep anyway. Of the others, only those whose
filters overlap can want what one consumer has settled, and one whose cursor has not come there yet wants it surely,
so most acks are decided without reading a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pelton.consumers.log import ConsumerLog
from pelton.sourcing import SourceLink
from pelton.storage import column, runs
from pelton.streams import StreamLog
from pelton.subjects import SubjectIndex, matches, overlaps

_CHUNK: Final = 4096
_HELD: Final = (
    "SELECT seq FROM pending WHERE consumer=?1 AND seq BETWEEN ?2 AND ?3 "
    "UNION ALL SELECT seq FROM ready WHERE consumer=?1 AND seq BETWEEN ?2 AND ?3 "
    "UNION ALL SELECT seq FROM exhausted WHERE consumer=?1 AND seq BETWEEN ?2 AND ?3"
)
_EVERYTHING: Final = (">",)


class Interest:
    """Who of a stream's consumers wants which of its messages."""

    def __init__(self, log: StreamLog, consumers: Sequence[ConsumerLog], takers: Sequence[SourceLink] = ()) -> None:
        self._log = log
        # Sources of other streams want what they have not taken yet.
        self._takers = takers
        self._consumers = tuple(consumers)
        self.mortal = tuple(consumer for consumer in consumers if consumer.config.inactive_threshold.ns > 0)
        self._rivals: dict[ConsumerLog, tuple[ConsumerLog, ...]] = {}
        # Those that begin ahead of what is stored: made so, or reset to it.
        self._late = {consumer for consumer in consumers if not self._has_begun(consumer)}
        self._index: SubjectIndex[ConsumerLog] = SubjectIndex()
        for consumer in consumers:
            for text in consumer.filters or _EVERYTHING:
                self._index.insert(text, consumer)

    # --- what is published

    def check(self) -> Callable[[str], bool] | None:
        """Return what tells whether a message published now is wanted; None where every one is."""
        if any(consumer.condition is None and consumer not in self._late for consumer in self._consumers):
            return None
        return self._wants

    def _wants(self, subject: str) -> bool:
        if any(taker.takes_next(subject) for taker in self._takers):
            return True
        return any(consumer not in self._late or self._has_begun(consumer) for consumer in self._index.match(subject))

    def _has_begun(self, consumer: ConsumerLog) -> bool:
        """Whether a consumer wants the next message: it may begin far ahead."""
        if self._log.state.stale:
            self._log.load()
        return _fresh(consumer).cursor <= self._log.state.last

    # --- what is settled

    def settled(self, consumer: ConsumerLog, sequences: Iterable[int]) -> None:
        """Remove what a consumer has just settled, but for what others still want."""
        rivals = self._rivals.get(consumer)
        if rivals is None:
            rivals = self._rivals[consumer] = tuple(o for o in self._consumers if _may_share(consumer, o))
        self._remove_unwanted(sequences, rivals)

    def released(self, sequences: Iterable[int]) -> None:
        """Remove what a source of another stream has taken, but for what others still want."""
        self._remove_unwanted(sequences, self._consumers)

    def tidy(self, first: int = 0) -> None:
        """Remove what nobody wants any more of all messages from ``first`` on."""
        log = self._log
        log.flush()
        last = min((_fresh(c).cursor for c in self._consumers if c.condition is None), default=log.state.last)
        while sequences := log.table.sequences(first, last, _CHUNK):
            self._remove_unwanted(sequences, self._consumers)
            first = sequences[-1] + 1

    def _remove_unwanted(self, sequences: Iterable[int], consumers: Sequence[ConsumerLog]) -> None:
        unwanted = self.unwanted(sequences, consumers) if consumers or self._takers else sequences
        if unwanted:
            self._log.remover.remove_settled(unwanted)

    def unwanted(self, sequences: Iterable[int], consumers: Sequence[ConsumerLog] | None = None) -> set[int]:
        """Return those messages that none of these consumers, or of all, wants."""
        left = _Candidates(self._log, sequences)
        # Who is furthest behind wants most.
        for consumer in sorted(self._consumers if consumers is None else consumers, key=_cursor):
            if not left.sequences:
                break
            left.sequences -= left.wanted_by(consumer)
        for taker in self._takers if left.sequences else ():
            left.sequences -= taker.wanted(left.sequences, left.subject_of)
        return left.sequences


class _Candidates:
    """Messages that may have to go; their subjects are read once, and only if somebody's filters ask for them."""

    def __init__(self, log: StreamLog, sequences: Iterable[int]) -> None:
        self._log = log
        self.sequences = set(sequences)
        self._subjects: dict[int, str] | None = None

    def wanted_by(self, consumer: ConsumerLog) -> set[int]:
        """Return those that a consumer wants."""
        mine = self.sequences
        if consumer.condition is not None:
            subjects = self._all_subjects()
            mine = {seq for seq in mine if seq in subjects and _matches(consumer, subjects[seq])}
        met = {seq for seq in mine if seq <= consumer.cursor}
        return (mine - met) | self._held(consumer, met)

    def _held(self, consumer: ConsumerLog, met: set[int]) -> set[int]:
        """Return those that a consumer has met and not settled."""
        held: set[int] = set()
        for first, last in _ranges(met):
            held.update(column(consumer.db.execute(_HELD, (consumer.id, first, last))))
        if consumer.waiting and consumer.per_subject:
            held.update(self._parked(consumer, met - held))
        return held & met

    def _parked(self, consumer: ConsumerLog, met: set[int]) -> list[int]:
        sql = "SELECT 1 FROM claims WHERE consumer=? AND subject=? AND seq=?"
        subjects = self._all_subjects()
        key = consumer.id
        return [s for s in met if s in subjects and consumer.db.value(sql, (key, subjects[s], s)) is not None]

    def subject_of(self, seq: int) -> str | None:
        """Return the subject of a message that is there."""
        return self._all_subjects().get(seq)

    def _all_subjects(self) -> dict[int, str]:
        if self._subjects is None:
            self._subjects = {}
            for first, last in _ranges(self.sequences):
                self._subjects.update(self._log.table.subjects(first, last))
        return self._subjects


def remove_settled(consumer: ConsumerLog, sequences: Iterable[int], interest: Interest | None) -> None:
    """Remove from the stream what a consumer has settled, as its retention says."""
    if interest is not None:
        interest.settled(consumer, sequences)
    elif consumer.log.config.retention == "workqueue":
        consumer.log.remover.remove_settled(sequences)


def first_wanted(consumer: ConsumerLog) -> int:
    """Return a sequence before which a consumer wants no message."""
    sql = (
        "SELECT min(seq) FROM (SELECT min(seq) AS seq FROM pending WHERE consumer=?1 UNION ALL "
        "SELECT min(seq) FROM ready WHERE consumer=?1 UNION ALL "
        "SELECT min(seq) FROM exhausted WHERE consumer=?1 UNION ALL SELECT min(seq) FROM claims WHERE consumer=?1)"
    )
    held = consumer.db.value(sql, (consumer.id,))
    ahead = _fresh(consumer).cursor + 1
    return ahead if held is None else min(int(held), ahead)


def exhaust(consumer: ConsumerLog, seq: int) -> None:
    """Note that a message was delivered as often as allowed: it is wanted, though never delivered again."""
    if consumer.log.config.retention == "interest":
        # What limits have removed meanwhile need not be remembered.
        consumer.db.execute("DELETE FROM exhausted WHERE consumer=? AND seq<?", (consumer.id, consumer.log.state.first))
        consumer.db.execute("INSERT OR IGNORE INTO exhausted VALUES(?, ?)", (consumer.id, seq))


def _fresh(consumer: ConsumerLog) -> ConsumerLog:
    if consumer.stale:
        consumer.load()
    return consumer


def _cursor(consumer: ConsumerLog) -> int:
    return _fresh(consumer).cursor


def _may_share(consumer: ConsumerLog, other: ConsumerLog) -> bool:
    """Whether both may want the same message."""
    if other is consumer:
        return False
    mine, theirs = consumer.filters or _EVERYTHING, other.filters or _EVERYTHING
    return any(overlaps(a, b) for a in mine for b in theirs)


def _matches(consumer: ConsumerLog, subject: str) -> bool:
    return any(matches(text, subject) for text in consumer.filters)


def _ranges(sequences: set[int]) -> list[tuple[int, int]]:
    """Return ranges that hold all of these sequences, few others, and are not many."""
    if not sequences:
        return []
    first, last = min(sequences), max(sequences)
    return [(first, last)] if last - first < 4 * len(sequences) else runs(sequences)
