"""Interest retention: a message stays while some consumer wants it.

Design: A consumer wants a message that matches its filters until it settles it: one ahead of its cursor, one
delivered and not settled (``pending``), one that waits behind it (``ready``, ``claims``), and one whose
deliveries are ``exhausted``: no consumer will ever settle that one, so it stays for inspection, as on a NATS server.
Without acks, a delivered message is settled.

A message that no consumer wants when it is published is never stored: it only uses up a sequence. A stored message is
checked again whenever a consumer may have stopped wanting it: the consumer settled it, changed its filters, or was
deleted; or the stream has just switched to interest retention. The check runs in the same transaction, so no unwanted
message stays behind, whichever process made the change and whatever was rolled back.

There are no reference counts: the rows that consumers keep anyway hold all answers. Of the other consumers, only those
whose filters overlap can want what one consumer has settled, and one whose cursor is still before it certainly does, so
most acks are decided without reading a row.

**Where a new consumer begins: the sequence it has passed already, and the earlier messages it still delivers.** A purge
lets the consumers of a stream pass the purged messages at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from pelton.api import ConsumerConfig, parse_rfc3339
from pelton.consumers.log import ConsumerLog
from pelton.sourcing import SourceLink
from pelton.storage import column, integer, runs
from pelton.streams import StreamLog
from pelton.subjects import SubjectIndex, clash_between, is_subset

_CHUNK: Final = 4096
_HELD: Final = (
    "SELECT seq FROM pending WHERE consumer=?1 AND seq BETWEEN ?2 AND ?3 "
    "UNION ALL SELECT seq FROM ready WHERE consumer=?1 AND seq BETWEEN ?2 AND ?3 "
    "UNION ALL SELECT seq FROM exhausted WHERE consumer=?1 AND seq BETWEEN ?2 AND ?3"
)
_EVERYTHING: Final = (">",)


class Interest:
    """Which of a stream's messages its consumers still want."""

    def __init__(self, log: StreamLog, consumers: Sequence[ConsumerLog], takers: Sequence[SourceLink] = ()) -> None:
        self._log = log
        # Streams that source this one want what they have not copied yet.
        self._takers = takers
        self._consumers = tuple(consumers)
        self.mortal: tuple[ConsumerLog, ...] = tuple(
            consumer for consumer in consumers if consumer.config.inactive_threshold.ns > 0
        )
        self._rivals: dict[ConsumerLog, tuple[ConsumerLog, ...]] = {}
        # Consumers that begin after all stored messages: created so, or reset.
        self._late = {consumer for consumer in consumers if not self._has_begun(consumer)}
        self._index: SubjectIndex[ConsumerLog] = SubjectIndex()
        for consumer in consumers:
            for text in consumer.filters or _EVERYTHING:
                self._index.insert(text, consumer)

    # --- what is published

    def check(self) -> Callable[[str], bool] | None:
        """Return a check whether a message published now is wanted; None if every message is."""
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
            self._log.state.load()
        return _fresh(consumer).cursor <= self._log.state.last

    # --- what is settled

    def settled(self, consumer: ConsumerLog, sequences: Collection[int]) -> None:
        """Remove what a consumer has just settled, except what others still want."""
        rivals = self._rivals.get(consumer)
        if rivals is None:
            rivals = self._rivals[consumer] = tuple(o for o in self._consumers if _may_share(consumer, o))
        self._remove_unwanted(sequences, rivals)

    def release(self, sequences: Collection[int]) -> None:
        """Remove what another stream has sourced, except what others still want."""
        self._remove_unwanted(sequences, self._consumers)

    def tidy(self, first: int = 0) -> None:
        """Remove all messages from ``first`` on that no consumer wants any more."""
        log = self._log
        log.appender.flush()
        last = min((_fresh(c).cursor for c in self._consumers if c.condition is None), default=log.state.last)
        while sequences := log.table.sequences(first, last, _CHUNK):
            self._remove_unwanted(sequences, self._consumers)
            first = sequences[-1] + 1

    def _remove_unwanted(self, sequences: Collection[int], consumers: Sequence[ConsumerLog]) -> None:
        unwanted = self.unwanted(sequences, consumers) if consumers or self._takers else sequences
        if unwanted:
            self._log.remover.remove_settled(unwanted)

    def unwanted(self, sequences: Iterable[int], consumers: Sequence[ConsumerLog] | None = None) -> set[int]:
        """Return the messages that none of ``consumers`` (None: of all) wants."""
        left = _Candidates(self._log, sequences)
        # The consumer that is furthest behind wants most.
        for consumer in sorted(self._consumers if consumers is None else consumers, key=_cursor):
            if not left.sequences:
                break
            left.sequences -= left.wanted_by(consumer)
        for taker in self._takers if left.sequences else ():
            left.sequences -= taker.find_untaken(left.sequences, left.subject_of)
        return left.sequences


class _Candidates:
    """Messages that may be removed; their subjects are read once, and only if a consumer's filters need them."""

    def __init__(self, log: StreamLog, sequences: Iterable[int]) -> None:
        self._log = log
        self.sequences = set(sequences)
        self._subjects: dict[int, str] | None = None

    def wanted_by(self, consumer: ConsumerLog) -> set[int]:
        """Return those that a consumer wants."""
        mine = self.sequences
        if consumer.condition is not None:
            subjects = self._all_subjects()
            mine = {seq for seq in mine if seq in subjects and consumer.wants(subjects[seq])}
        met = {seq for seq in mine if seq <= consumer.cursor}
        return (mine - met) | self._held(consumer, met)

    def _held(self, consumer: ConsumerLog, met: set[int]) -> set[int]:
        """Return those that a consumer has passed and not settled."""
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
        return [
            s
            for s in met
            if s in subjects and consumer.db.value(sql, (key, consumer.claim_of(subjects[s]), s)) is not None
        ]

    def subject_of(self, seq: int) -> str | None:
        """Return the subject of a message, None if it is gone."""
        return self._all_subjects().get(seq)

    def _all_subjects(self) -> dict[int, str]:
        if self._subjects is None:
            self._subjects = {}
            for first, last in _ranges(self.sequences):
                self._subjects.update(self._log.table.subjects(first, last))
        return self._subjects


def remove_settled(consumer: ConsumerLog, sequences: Collection[int], interest: Interest | None) -> None:
    """Remove from the stream what a consumer has settled, as its retention requires."""
    if interest is not None:
        interest.settled(consumer, sequences)
    elif consumer.log.config.retention == "workqueue":
        # Those with a limit per subject hardly ever have the same subject.
        consumer.log.remover.remove_settled(sequences, may_be_alike=not consumer.per_subject)


def first_wanted(consumer: ConsumerLog) -> int:
    """Return a sequence before which a consumer wants no message."""
    sql = (
        "SELECT min(seq) FROM (SELECT min(seq) AS seq FROM pending WHERE consumer=?1 UNION ALL "
        "SELECT min(seq) FROM ready WHERE consumer=?1 UNION ALL "
        "SELECT min(seq) FROM exhausted WHERE consumer=?1 UNION ALL SELECT min(seq) FROM claims WHERE consumer=?1)"
    )
    held = consumer.db.value(sql, (consumer.id,))
    ahead = _fresh(consumer).cursor + 1
    return ahead if held is None else min(integer(held), ahead)


def exhaust(consumer: ConsumerLog, seq: int) -> None:
    """Record that a message has used up its deliveries: it is wanted, though never redelivered."""
    if consumer.log.config.retention == "interest":
        # Forget those that limits have removed since.
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
    return clash_between(mine, theirs)


def _ranges(sequences: set[int]) -> list[tuple[int, int]]:
    """Return a few ranges that hold all of these sequences, and few others."""
    if not sequences:
        return []
    first, last = min(sequences), max(sequences)
    return [(first, last)] if last - first < 4 * len(sequences) else runs(sequences)


def start_cursor(config: ConsumerConfig, log: StreamLog, filters: tuple[str, ...]) -> int:
    """Return the last sequence that the consumer does not deliver (0: it delivers all)."""
    log.appender.flush()
    policy = config.deliver_policy
    if policy == "new" or _is_of_lasts(config, log):
        return log.state.last
    if policy == "last":
        last = max((log.reader.last_seq_of(text) for text in filters), default=log.state.last)
        return max(last, log.state.first) - 1
    if policy == "by_start_sequence":
        return max(config.opt_start_seq, log.state.first) - 1
    if policy == "by_start_time":
        return log.reader.first_at(parse_rfc3339(config.opt_start_time)) - 1
    return log.state.first - 1


def begin(consumer: ConsumerLog) -> None:
    """Complete the state of a new consumer: what it replays, and the last message of each subject."""
    config, log = consumer.config, consumer.log
    consumer.dirty = True
    if config.replay_policy == "original":
        consumer.replay_upto = log.state.last
    if _is_of_lasts(config, log):
        _offer_lasts(consumer)


def _is_of_lasts(config: ConsumerConfig, log: StreamLog) -> bool:
    # If no subject has more than one message, each is its last, and no search is needed.
    return config.deliver_policy == "last_per_subject" and log.config.max_msgs_per_subject != 1


def _offer_lasts(consumer: ConsumerLog) -> None:
    """Make the last message of every subject ready, as if each had waited behind others of its subject."""
    log = consumer.log
    rows = log.reader.last_rows(consumer.condition)
    lasts = [
        (consumer.id, row.seq, consumer.claim_of(row.subject), consumer.rank_of(row.subject), turn)
        for turn, row in enumerate(rows, 1)
    ]
    consumer.db.executemany("INSERT INTO ready VALUES(?, ?, ?, ?, ?)", lasts)
    consumer.claims.turns = len(lasts)
    if consumer.per_subject:
        claims = [(consumer.id, subject, seq, rank) for _, seq, subject, rank, _ in lasts]
        consumer.db.executemany("INSERT INTO claims VALUES(?, ?, ?, 1, ?)", claims)
    consumer.waiting = len(lasts)
    consumer.delivered = min((row.seq for row in rows), default=max(log.state.last, log.state.first)) - 1


def follow_purge(consumer: ConsumerLog, purged: str) -> None:
    """Move a consumer to the first message that a purge of filter ``purged`` (empty: of all) may have left."""
    first = _first_left(consumer, purged)
    if first is not None:
        consumer.pass_to(first - 1)


def follow_roll_ups(log: StreamLog, consumers: Iterable[ConsumerLog]) -> None:
    """Let consumers pass what was rolled up in their stream, as after a purge."""
    for consumer in consumers:
        for subject in log.state.effects.rolled_up:
            follow_purge(consumer, subject)
    log.state.effects.rolled_up.clear()


def _first_left(consumer: ConsumerLog, purged: str) -> int | None:
    """Return where the consumer continues; None if the purge does not affect it."""
    log, mine = consumer.log, consumer.filters
    if purged in ("", ">"):
        return log.state.first
    if mine and all(is_subset(text, purged) for text in mine):
        left = log.reader.next_row_of(log.state.first, purged)
        return log.state.last + 1 if left is None else left.seq
    wide = not mine or any(is_subset(purged, text) for text in mine)
    return log.state.first if wide else None
