"""Applying acks to their deliveries, by the table of states below, and what interest retention then keeps.

**The states of a delivery, and the state to which each kind of ack leads.** For every consumer, a message is in one of
these states; its rows determine which::

    (ahead)    after the cursor: no row
    parked     passed by the cursor, behind a held message of its subject: a claim that is not held
    ready      next of its subject, which waits for its turn, not delivered yet: a row in ``ready``
    delivered  held by a client, for the first time or again: a row in ``pending`` that falls due later
    due        may be redelivered, its last holder may still ack: a row in ``pending`` that is due
    acked      settled: no row behind the cursor
    termed     the same, for a message that must not be redelivered
    exhausted  delivered ``max_deliver`` times, and not settled: a row in ``exhausted`` with interest retention
    removed    limits, a purge or a deletion took it from the stream: no longer awaited once the consumer notices; a row
               in ``pending_removed`` keeps its delivery until the ack, or a pull after the end of its ack wait. If its
               holder keeps a subject, it stays in ``pending`` until then

An ack names the delivery it belongs to. An ack of an earlier delivery, or of a message that is settled or exhausted,
changes nothing and is rejected, and never affects the other acks; an ack of a removed message is accepted in time, and
harmless later. Everything else that moves a message (pulls, time, limits) moves rows in SQL:
``docs/explanation/consumers.md`` draws all of it, and a test plays each line.

**Interest retention: a message stays while some consumer wants it.** A consumer wants a message that matches its
filters until it settles it: one ahead of its cursor, one delivered and not settled (``pending``), one that waits behind
it (``ready``, ``claims``), and one whose deliveries are ``exhausted``: no consumer will ever settle that one, so it
stays for inspection, as on a NATS server. Without acks, a delivered message is settled.

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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from pelton.api import AckKind, AckOp, AckRejectedError, ConsumerConfig, PeltonError, parse_rfc3339
from pelton.api.events import AckSample, MessageNaked, MessageTerminated
from pelton.api.times import Duration
from pelton.consumers.log import ConsumerLog, due_after, later
from pelton.consumers.rules import ALL
from pelton.sourcing import SourceLink
from pelton.storage import STATE_SEQ, TOKEN_EPOCH, column, decoded, integer, integers, runs
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


def follow_purge(consumer: ConsumerLog, purged: str, left: int) -> None:
    """Move a consumer to the first message that a purge may have left; of those that match, none before ``left``."""
    log, mine = consumer.log, consumer.filters
    if purged != ">" and mine and all(is_subset(text, purged) for text in mine):
        consumer.pass_to(left - 1)
    elif purged == ">" or not mine or any(is_subset(purged, text) for text in mine):
        consumer.pass_to(log.state.first - 1)


def first_left(log: StreamLog, purged: str, after: int) -> int:
    """Return the first sequence after one that a purge of filter ``purged`` has left, or the next to be stored."""
    left = log.reader.next_row_of(max(log.state.first, after + 1), purged)
    return log.state.last + 1 if left is None else left.seq


def follow_roll_ups(log: StreamLog, consumers: Iterable[ConsumerLog]) -> None:
    """Let consumers pass what was rolled up in their stream, as after a purge."""
    for subject, after in log.state.effects.rolled_up.items() if consumers else ():
        left = first_left(log, subject, after)
        for consumer in consumers:
            follow_purge(consumer, subject, left)
    log.state.effects.rolled_up.clear()


Answered = Literal["delivered", "due", "acked", "termed"]

AFTER_ACK: Final[Mapping[AckKind, Answered]] = {"ack": "acked", "term": "termed", "nak": "due", "progress": "delivered"}
SETTLED: Final[frozenset[Answered]] = frozenset({"acked", "termed"})


_DELETE: Final = "DELETE FROM pelton_deliveries WHERE consumer=? AND seq"
_DELETE_HELD: Final = f"{_DELETE}=? AND dseq=? AND seq<{STATE_SEQ}"
_MANY: Final = 8
_AHEAD: Final = 256
# Each text says what is known of the message, and what you can do if anything.
_REPLACED: Final = (
    "it was delivered again since: this delivery has been replaced; "
    "raise ack_wait, or call in_progress() during long work"
)
_SETTLED: Final = "it is settled already, was given up after max_deliver deliveries, or was never delivered"
_REMOVED: Final = (
    "the message was removed from its stream and is not delivered again; this delivery of it is settled, replaced or "
    "over its ack wait"
)
_OF_ANOTHER: Final = "its consumer was deleted: the new consumer of that name may deliver the message again"


class _PendingRow(msgspec.Struct, frozen=True, gc=False):
    """A row of ``pending``: the number of the last delivery, and the subject if claims are kept."""

    seq: int
    dseq: int
    subject: str | None
    deliveries: int


Known = dict[int, _PendingRow]
"""Unsettled messages by sequence."""


class Settlement:
    """A group of acks for one consumer at the time ``now`` (wall nanoseconds), inside a write transaction."""

    def __init__(self, consumer: ConsumerLog, now: int, interest: Interest | None = None) -> None:
        self._c = consumer
        self._interest = interest
        self._now = now
        self._done: dict[int, str | None] = {}
        # What was read of deliveries, and is not settled.
        self._held: Known = {}
        self._again: list[tuple[int, int, int, int]] = []
        # Refusals of acks that had nothing left to settle: harmless if nothing is published with them.
        self._harmless: set[PeltonError] = set()

    def run(self, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Apply acks in order; return one entry per ack: None, or why nothing may be published with it."""
        if len(acks) == 1 and self._has_settled(acks[0]):
            return [None]
        answers = self.take(acks)
        self.write()
        return answers

    def _has_settled(self, ack: AckOp) -> bool:
        """Settle a delivery in one statement, if this is a plain ack and it is held: the usual case."""
        c = self._c
        if ack.kind != "ack" or c.config.ack_policy != "explicit" or c.sampled or c.per_subject:
            return False
        if self._is_of_another(ack) or ack.is_of_any:
            return False
        c.db.run(_DELETE_HELD, (c.id, ack.seq, ack.consumer_seq))
        if not c.db.connection.changes():
            return False
        self._note_settled((ack.seq,))
        return True

    def of_acks_alone(self, answers: list[PeltonError | None]) -> list[PeltonError | None]:
        """Return the answers for acks with which nothing is to be published."""
        if not self._harmless:
            return answers
        return [None if answer in self._harmless else answer for answer in answers]

    def take(self, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Check acks as :meth:`run` does; valid ones take effect with :meth:`write`."""
        if self._c.config.ack_policy == "none" or self._take_all(acks):
            return [None] * len(acks)
        if self._c.config.ack_policy == "all" or not all(ack.seq in self._held for ack in acks):
            self._read(acks)
        return [self._one(ack) for ack in acks]

    def _take_all(self, acks: Sequence[AckOp]) -> bool:
        """Settle a large group at once if all are plain acks of held deliveries, which is the usual case."""
        c = self._c
        if len(acks) < _MANY or c.config.ack_policy != "explicit" or c.sampled or self._done or self._held:
            return False
        done = {ack.seq: ack.consumer_seq for ack in acks if ack.kind == "ack"}
        if len(done) < len(acks):
            return False
        where, bindings = self._among(done)
        held: dict[int, int] = dict(c.db.run(f"SELECT seq, dseq FROM pending WHERE {where}", bindings))
        # Like `_is_of_another`, for all of them.
        floor = c.token_floor
        if not done.items() <= held.items() or any(TOKEN_EPOCH <= ack.token <= floor for ack in acks):
            return False
        self._done = dict.fromkeys(done)
        if c.per_subject:
            sql = f"SELECT seq, subject FROM pending WHERE {where}"
            claimed: dict[int, str | None] = dict(c.db.run(sql, bindings))
            self._done = {seq: claimed[seq] for seq in done}
        return True

    def _among(self, sequences: Collection[int]) -> tuple[str, tuple[int | str, ...]]:
        """Return the condition for rows of these messages, and maybe of others beside them, with its bindings."""
        if len(sequences) == 1:
            [first] = [last] = sequences
        else:
            first, last = min(sequences, default=0), max(sequences, default=0)
        if last - first < 4 * len(sequences):
            if first - 1 in self._done:
                # Acks that come one by one go on: one statement reads for as many as were taken.
                last += min(len(self._done), _AHEAD)
            return "consumer=? AND seq BETWEEN ? AND ?", (self._c.id, first, last)
        listed = f"[{','.join(map(str, sequences))}]"
        return "consumer=? AND seq IN (SELECT value FROM json_each(?))", (self._c.id, listed)

    def _is_of_another(self, ack: AckOp) -> bool:
        """Whether a delivery is of a deleted consumer of this name; a token that is not ours tells nothing."""
        return TOKEN_EPOCH <= ack.token <= self._c.token_floor

    def _read(self, acks: Sequence[AckOp]) -> None:
        c, done = self._c, self._done
        where, bindings = self._among([ack.seq for ack in acks])
        if c.config.ack_policy == "all":
            where, bindings = "consumer=? AND seq<=?", (c.id, max(ack.seq for ack in acks))
        rows = c.db.run(f"SELECT seq, dseq, subject, n FROM pending WHERE {where}", bindings).fetchall()
        self._held = {held.seq: held for held in decoded(_PendingRow, rows) if held.seq not in done}

    def _one(self, ack: AckOp) -> PeltonError | None:
        found = self._held.get(ack.seq)
        if self._is_of_another(ack):
            return self._rejected(ack, _OF_ANOTHER)
        if found is None:
            return self._one_removed(ack)
        if found.dseq != ack.consumer_seq and not ack.is_of_any:
            return self._rejected(ack, _REPLACED)
        after = AFTER_ACK[ack.kind]
        if after == "due" and ack.is_of_any and not 0 < ack.consumer_seq <= self._c.dseq + 1:
            # As on NATS: what was not delivered, nor is the next to be, cannot be given back.
            return self._rejected(ack, _REPLACED)
        self._tell(ack, after, found.deliveries)
        if after in SETTLED:
            self._settle(ack)
        else:
            due = self._due(ack, after, found.deliveries)
            self._again.append((due, 1 + ack.cause if after == "due" else 0, self._c.id, ack.seq))
        return None

    def _tell(self, ack: AckOp, after: Answered, deliveries: int) -> None:
        """Send the advisory or the metric of an ack."""
        if after == "acked":
            if self._c.sampled:
                self._sample(ack, deliveries)
        elif after == "termed":
            self._c.advise(MessageTerminated(**self._names(ack, deliveries), reason=ack.reason))
        elif after == "due":
            self._c.advise(MessageNaked(**self._names(ack, deliveries)))

    def _due(self, ack: AckOp, after: Answered, deliveries: int) -> int:
        """Return when an unsettled message may be redelivered."""
        return later(self._now, ack.delay_ns) if after == "due" else due_after(self._c.config, deliveries, self._now)

    def _one_removed(self, ack: AckOp) -> PeltonError | None:
        """Check an ack of a message that is not pending: it may have left the stream while it was held."""
        c, key = self._c, (self._c.id, ack.seq)
        last = c.db.execute("SELECT dseq, n FROM pending_removed WHERE consumer=? AND seq=?", key).fetchone()
        if last is None and self._is_gone(ack.seq):
            harmless = self._rejected(ack, _REMOVED)
            self._harmless.add(harmless)
            return harmless
        if last is None:
            return self._rejected(ack, _SETTLED)
        dseq, deliveries = integers(last)
        if dseq != ack.consumer_seq and not ack.is_of_any:
            return self._rejected(ack, _REPLACED)
        after = AFTER_ACK[ack.kind]
        if after not in SETTLED:
            due = self._due(ack, after, deliveries)
            c.db.execute("UPDATE pending_removed SET due=? WHERE consumer=? AND seq=?", (due, *key))
            c.due, c.dirty = min(c.due, due), True
        elif c.config.ack_policy == "all":
            self._settle_upto(ack)
        else:
            c.db.execute("DELETE FROM pending_removed WHERE consumer=? AND seq=?", key)
        return None

    def _is_gone(self, seq: int) -> bool:
        """Whether limits, a purge or a deletion removed the message: an ack is then harmless."""
        log = self._c.log
        return log.config.retention == "limits" and 0 < seq <= log.state.last and log.reader.get(seq) is None

    def _rejected(self, ack: AckOp, reason: str) -> AckRejectedError:
        return AckRejectedError(self._c.log.name, self._c.name, ack.seq, reason)

    def _names(self, ack: AckOp, deliveries: int) -> dict[str, Any]:
        c = self._c
        numbers = {"consumer_seq": ack.consumer_seq, "stream_seq": ack.seq, "deliveries": deliveries}
        return {"stream": c.log.name, "consumer": c.name, **numbers}

    def _sample(self, ack: AckOp, deliveries: int) -> None:
        """Report how long an ack took, as often as the consumer asks for."""
        c = self._c
        if c.sampled < ALL and c.log.state.env.draw(ALL) >= c.sampled:
            return
        due = c.db.value("SELECT due FROM pending WHERE consumer=? AND seq=?", (c.id, ack.seq))
        # It was delivered one ack wait before it falls due.
        taken = self._now - integer(due) + due_after(c.config, deliveries, 0)
        c.advise(AckSample(**self._names(ack, deliveries), ack_time=Duration.of_ns(max(taken, 0))))

    def _settle(self, ack: AckOp) -> None:
        if self._c.config.ack_policy == "all":
            self._settle_upto(ack)
        else:
            self._done[ack.seq] = self._held.pop(ack.seq).subject

    def _settle_upto(self, ack: AckOp) -> None:
        self._c.db.execute("DELETE FROM pending_removed WHERE consumer=? AND seq<=?", (self._c.id, ack.seq))
        for seq in [seq for seq in self._held if seq <= ack.seq]:
            self._done[seq] = self._held.pop(seq).subject

    def write(self) -> None:
        """Apply the acks that were taken; call it once."""
        c = self._c
        if self._again:
            c.db.run_many("UPDATE pelton_deliveries SET due=?, waits=? WHERE consumer=? AND seq=?", self._again)
            c.due = min(c.due, min(due for due, _, _, _ in self._again))
            c.dirty = True
        if not self._done:
            return
        if len(found := runs(self._done)) < _MANY:
            for first, last in found:
                c.db.run(f"{_DELETE} BETWEEN ? AND ?", (c.id, first, last))
        else:
            c.db.run_many(f"{_DELETE}=?", [(c.id, seq) for seq in self._done])
        self._note_settled(self._done)
        if c.per_subject:
            c.claims.release([(subject, seq) for seq, subject in self._done.items() if subject is not None])

    def _note_settled(self, sequences: Collection[int]) -> None:
        c = self._c
        c.unsettled -= len(sequences)
        c.last_ack = self._now
        c.dirty = True
        remove_settled(c, sequences, self._interest)
