"""One consumer inside a transaction: what it has delivered, what it redelivers, and what it holds back.

Design: A consumer moves a ``cursor`` through the stream. A message that it delivers gets a row in ``pending`` until it
is settled (acked, terminated, or exhausted); a row that falls ``due`` is redelivered. A consumer with a limit per
subject also keeps ``claims``: the cursor passes a message whose subject is taken, and the message waits behind its
predecessors; the transaction that settles a message makes the next of its subject ready. So other subjects never wait,
and order per subject holds through retries: a retried message keeps its claim. Subjects take turns
(``deliver.py``).

Invariants: ``unsettled`` equals the rows in ``pending``; at most ``limit`` claims of a subject are held, always the
oldest; every held claim has a row in ``pending`` or ``ready``; delivery numbers (``dseq``) only grow.

A delivery is identified by sequence and ``dseq``: an ack of a delivery that was replaced by a later one is refused.
Exclusive work relies on this fencing; NATS accepts such acks. A consumer that was deleted and created again counts from
1: ``token_floor`` tells its acks from those of its predecessor, if they carry the fencing token of their delivery.

**What a consumer still has rows of, although its messages were removed from the stream: counted, and left alone.** A
store that is only read cannot remove these rows, as using the consumer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from pelton.api import (
    ConsumerConfig,
    ConsumerInfo,
    PriorityGroupState,
    PullRequest,
    SequenceInfo,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.events import Event
from pelton.api.schedule import LATEST
from pelton.api.times import Duration
from pelton.consumers.claims import Claim, ClaimTable
from pelton.consumers.rules import sample_percent
from pelton.storage import (
    STATE_SEQ,
    Condition,
    DamagedRowError,
    Database,
    decoded,
    integer,
    integers,
    subject_condition,
    text,
)
from pelton.streams import StreamLog
from pelton.subjects import first_match, has_wildcard


class Vanished(NamedTuple):
    """The numbers of removed messages that count as delivered and not settled, and as waiting for delivery."""

    pending: int
    waiting: int


def vanished(database: Database, table: str, consumer: int, *, exclusive: bool) -> Vanished:
    """Count them for a consumer of the stream whose messages are in ``table``; ``exclusive`` if subjects are.

    The holder of an exclusive subject keeps working even if its message is gone, so it still counts.
    """
    missing = f"NOT EXISTS(SELECT 1 FROM {table} m WHERE m.seq=t.seq)"
    undelivered = "NOT EXISTS(SELECT 1 FROM pending p WHERE p.consumer=?1 AND p.seq=t.seq)"
    behind = "claims" if exclusive else "ready"
    pending = f"SELECT count(*) FROM pending t WHERE consumer=?1 AND {missing}"
    waiting = f"SELECT count(*) FROM {behind} t WHERE consumer=?1 AND {missing} AND {undelivered}"
    return Vanished(
        0 if exclusive else int(database.value(pending, (consumer,))), int(database.value(waiting, (consumer,)))
    )


NEVER: Final = (1 << 63) - 1
_KEEP_REMOVED: Final = (
    "INSERT OR REPLACE INTO pending_removed SELECT consumer, seq, dseq, n, due FROM pending WHERE consumer=? AND seq=?"
)
_LOAD: Final = f"SELECT dseq, n, due, waits, subject FROM pelton_deliveries WHERE consumer=? AND seq={STATE_SEQ}"
_decode: Final = msgspec.json.Decoder(tuple[int, int, int, int, int, int, int, int, int, int, int, int]).decode
# Messages that are counted one by one without anybody noticing.
_MANY: Final = 20_000
_SHORTER: Final = 4
# How often uses are recorded in an ``inactive_threshold`` at most.
_USES_RECORDED: Final = 64
_SAVE: Final = (
    f"UPDATE pelton_deliveries SET dseq=?, n=?, due=?, waits=?, subject=? WHERE consumer=? AND seq={STATE_SEQ}"
)


# The first has its state, too.
_TABLES: Final = ("pelton_deliveries", "pending_removed", "claims", "ready", "exhausted", "pulls", "pins", "nearest")


class ConsumerLog:
    """The consumer with row id ``consumer`` of a stream; fencing tokens of its deliveries are above ``token_floor``.

    ``loaded`` has the consumers of the store that have loaded their state.
    """

    stale: bool
    dirty: bool
    dseq: int
    cursor: int
    delivered: int
    unsettled: int
    waiting: int
    ahead: int
    ahead_last: int
    ahead_removals: int
    last_active: int
    last_ack: int
    replay_upto: int
    replay_shift: int
    replay_due: int
    bypassed: int
    due: int
    name: str
    condition: Condition | None
    literal: str
    per_subject: int
    sampled: int
    room: int
    paused_until: int

    def __init__(
        self,
        database: Database,
        consumer: int,
        log: StreamLog,
        config: ConsumerConfig,
        created: int,
        advise: Callable[[Event], None],
        *,
        token_floor: int,
        loaded: set[ConsumerLog],
    ) -> None:
        self.db = database
        self.advise = advise
        self.id = consumer
        self.log = log
        self.created = created
        self.token_floor = token_floor
        self.stale = True
        self.dirty = False
        # Whether it had nothing for the last pull of this process.
        self.is_dry = False
        self.dseq = self.cursor = self.delivered = self.unsettled = self.waiting = 0
        self.ahead = self.ahead_last = self.ahead_removals = self.last_active = self.last_ack = 0
        self.replay_upto = self.replay_shift = self.replay_due = self.bypassed = 0
        self.due = NEVER
        self._bounds: tuple[int, tuple[int | None, int | None, int]] | None = None
        self.claims: ClaimTable = ClaimTable(database, consumer)
        self._loaded = loaded
        self.configure(config)

    def configure(self, config: ConsumerConfig) -> None:
        self.config = config
        # The last pull that this configuration accepts.
        self.accepted: PullRequest | None = None
        self.name = config.name
        self.filters: tuple[str, ...] = config.filter_subjects or (
            (config.filter_subject,) if config.filter_subject else ()
        )
        self.condition = subject_condition(self.filters)
        self._first_filter: Callable[[str], int | None] | None = None
        self.literal = self.filters[0] if len(self.filters) == 1 and not has_wildcard(self.filters[0]) else ""
        self.per_subject = self.claims.limit = config.max_ack_pending_per_subject
        self._claim_end = f".{end}." if (end := config.max_ack_pending_subject_end) else ""
        # The beginnings of subjects of each rank, the lowest first.
        self.ranks: tuple[str, ...] = tuple(f"{prefix}." for prefix in config.max_ack_pending_subject_ranks)
        self.sampled = sample_percent(config.sample_freq) if config.ack_policy == "explicit" else 0
        self.room = config.max_ack_pending if config.max_ack_pending > 0 else NEVER
        self.paused_until = max(parse_rfc3339(config.pause_until), 0) if config.pause_until else 0

    def wants(self, subject: str) -> bool:
        if self._first_filter is None:
            self._first_filter = first_match(self.filters)
        return self._first_filter(subject) is not None

    def load(self) -> None:
        """Reload the state row, which another process may have changed."""
        rows = self.db.run(_LOAD, (self.id,)).fetchall()
        if not rows:
            raise DamagedRowError("its state is missing")
        *numbers, others = rows[0]
        self.dseq, self.unsettled, self.due, self.waiting = integers(numbers)
        try:
            (
                self.cursor,
                self.delivered,
                self.ahead,
                self.ahead_last,
                self.ahead_removals,
                self.last_active,
                self.last_ack,
                self.replay_upto,
                self.replay_shift,
                self.replay_due,
                self.claims.turns,
                self.bypassed,
            ) = _decode(text(others))
        except msgspec.DecodeError as error:
            raise DamagedRowError(f"its state is damaged: {error}") from None
        self.claims.forget()
        self.stale = False
        self._bounds = None
        self._loaded.add(self)

    def reset(self) -> None:
        """Forget everything that was not committed."""
        self.dirty = False
        self.stale = True

    def flush(self) -> None:
        if not self.dirty:
            return
        others = (
            self.cursor,
            self.delivered,
            self.ahead,
            self.ahead_last,
            self.ahead_removals,
            self.last_active,
            self.last_ack,
            self.replay_upto,
            self.replay_shift,
            self.replay_due,
            self.claims.turns,
            self.bypassed,
        )
        state = (self.dseq, self.unsettled, self.due, self.waiting, msgspec.json.encode(others).decode(), self.id)
        self.db.run(_SAVE, state)
        self.dirty = False

    def claim_of(self, subject: str) -> str:
        """Return what a message claims, if the consumer has a limit per subject."""
        if self.ranks and (rank := self.rank_of(subject)):
            subject = self.ranks[0] + subject.removeprefix(self.ranks[rank])
        return subject.partition(self._claim_end)[0] if self._claim_end else subject

    def rank_of(self, subject: str) -> int:
        if self.ranks and not subject.startswith(self.ranks[0]):
            for rank, beginning in enumerate(self.ranks):
                if subject.startswith(beginning):
                    return rank
        return 0

    # --- counting pending messages

    def count_ahead(self) -> int:
        """Return how many matching messages follow the cursor, and update the cached count."""
        log = self.log
        log.appender.flush()
        removed = self.ahead_removals != log.state.removals
        if removed:
            self._drop_vanished()
        if removed and (self.ahead_removals < 0 or not log.state.is_gapless or self.cursor < log.state.first - 1):
            self.ahead = self._count_all()
        elif removed or self.ahead_last < log.state.last:
            # In a stream without gaps, all removed messages came before its first one, so behind the cursor.
            known = max(self.ahead_last, self.cursor)
            if self.condition is not None and log.state.last - known > _MANY:
                self.ahead = self._count_all()
            else:
                self.ahead += self._count_new(known + 1)
        else:
            return self.ahead
        self.ahead_last, self.ahead_removals = log.state.last, log.state.removals
        self.dirty = True
        return self.ahead

    def _count_new(self, first: int) -> int:
        log = self.log
        if self.condition is None:
            return max(log.state.last - first + 1, 0)
        return log.table.count(first, log.state.last, self.condition)

    def _count_all(self) -> int:
        log = self.log
        behind = min(self.cursor - log.state.first + 1, log.state.msgs)
        if behind <= 0:
            return log.reader.count_of(self.condition)
        ahead = log.state.last - self.cursor
        if self.condition is not None and max(_MANY, _SHORTER * behind) < ahead:
            # What is known of the subjects counts all at once: of a long line of jobs, few are behind the cursor.
            return log.reader.count_of(self.condition) - log.table.count(log.state.first, self.cursor, self.condition)
        if self.condition is not None or self.cursor >= log.state.last:
            return log.table.count(self.cursor + 1, log.state.last, self.condition)
        if log.state.is_gapless:
            return log.state.last - self.cursor
        if self.cursor - log.state.first < log.state.last - self.cursor:
            return log.state.msgs - log.table.count(log.state.first, self.cursor)
        return log.table.count(self.cursor + 1, log.state.last)

    def _drop_vanished(self) -> None:
        """Forget messages removed from the stream: those delivered and not settled, and those that wait."""
        if self.db.is_read_only:
            pending, waiting = vanished(self.db, self.log.table.name, self.id, exclusive=self.per_subject > 0)
            self.unsettled, self.waiting = self.unsettled - pending, self.waiting - waiting
            return
        if self.unsettled or self.waiting:
            # They are forgotten in rows, too: a snapshot would undo that, and memory would know fewer than there are.
            self.db.check_changing()
        self._drop_vanished_pending()
        if not self.waiting:
            return
        if not self.per_subject:
            self._drop_vanished_ready()
            return
        sql = (
            "SELECT subject, seq, held FROM claims WHERE consumer=?1 "
            f"AND NOT EXISTS(SELECT 1 FROM {self.log.table.name} m WHERE m.seq=claims.seq) "
            "AND NOT EXISTS(SELECT 1 FROM pending p WHERE p.consumer=?1 AND p.seq=claims.seq)"
        )
        self._drop_waiting(decoded(Claim, self.db.execute(sql, (self.id,)).fetchall()))

    def _drop_vanished_ready(self) -> None:
        table = self.log.table.name
        sql = f"DELETE FROM ready WHERE consumer=? AND NOT EXISTS(SELECT 1 FROM {table} m WHERE m.seq=ready.seq)"
        self.db.execute(sql, (self.id,))
        self._count_ready()

    def _count_ready(self) -> None:
        self.waiting = integer(self.db.value("SELECT count(*) FROM ready WHERE consumer=?", (self.id,)))
        self.dirty = True

    def _drop_vanished_pending(self) -> None:
        if not self.unsettled or self.per_subject:
            # If subjects are exclusive, their holder is waited for: it keeps working even if the message is gone.
            return
        sql = "SELECT seq FROM pending WHERE consumer=?1 AND seq<?2"
        if not self.log.state.is_gapless:
            sql += f" OR consumer=?1 AND NOT EXISTS(SELECT 1 FROM {self.log.table.name} m WHERE m.seq=pending.seq)"
        # Its holder may still publish a result with its ack; flow control acks publish nothing and have no ack wait.
        is_kept = self.config.ack_policy != "flow_control"
        for (seq,) in self.db.execute(sql, (self.id, self.log.state.first)).fetchall():
            if is_kept:
                self.db.execute(_KEEP_REMOVED, (self.id, seq))
            self.forget_missing(integer(seq), None)

    def _drop_waiting(self, rows: list[Claim]) -> None:
        """Drop claims of messages that were never delivered."""
        self.claims.drop_parked([(subject, seq) for subject, seq, held in rows if not held])
        ready = [(subject, seq) for subject, seq, held in rows if held]
        self.no_longer_ready([seq for _, seq in ready])
        self.claims.release(ready)
        self.waiting -= len(rows)
        self.dirty = True

    def num_pending(self) -> int:
        """Return how many messages this consumer has yet to deliver for the first time."""
        return self.count_ahead() + self.waiting

    def unsettled_bounds(self) -> tuple[int | None, int | None, int]:
        """Return the least sequence and number of an unsettled delivery, and how many deliveries are repeated ones."""
        # They may be very many, and a page asks for the info again and again. Rolling back leads to loading.
        changes = self.db.connection.total_changes()
        if self._bounds is None or self._bounds[0] != changes:
            sql = "SELECT min(seq), min(dseq), ifnull(sum(n > 1), 0) FROM pending WHERE consumer=?"
            ((seq, dseq, repeated),) = self.db.execute(sql, (self.id,)).fetchall()
            bounds = None if seq is None else integer(seq), None if dseq is None else integer(dseq), integer(repeated)
            self._bounds = changes, bounds
        return self._bounds[1]

    # --- messages that became ready

    def no_longer_ready(self, sequences: Sequence[int]) -> None:
        """Remove messages from those that became ready: they are delivered, or gone."""
        self.db.executemany("DELETE FROM ready WHERE consumer=? AND seq=?", [(self.id, seq) for seq in sequences])

    def reconfigured(self, old: ConsumerConfig) -> bool:
        """Apply a change of filters or of the limit per subject, in the transaction that made it.

        Return whether the consumer may want fewer messages now.
        """
        other = (old.filter_subject, old.filter_subjects) != (self.config.filter_subject, self.config.filter_subjects)
        if other:
            # Pending messages have to be recounted with the new filters.
            self.ahead_removals = -1
            self.dirty = True
            if self.waiting and self.condition is not None:
                self._drop_unwanted(self.condition)
        if self.waiting and self.per_subject > old.max_ack_pending_per_subject:
            self.claims.promote_all()
            self.dirty = True
        return other

    def _drop_unwanted(self, condition: Condition) -> None:
        """Forget messages that wait behind others of their subject, and no longer match."""
        if not self.per_subject:
            self.db.execute(
                f"DELETE FROM ready WHERE consumer=? AND NOT {condition.sql}", (self.id, *condition.bindings)
            )
            self._count_ready()
            return
        sql = (
            f"SELECT subject, seq, held FROM claims WHERE consumer=? AND NOT {condition.sql} AND (held=0 OR EXISTS("
            "SELECT 1 FROM ready r WHERE r.consumer=claims.consumer AND r.seq=claims.seq))"
        )
        self._drop_waiting(decoded(Claim, self.db.execute(sql, (self.id, *condition.bindings)).fetchall()))

    def restart(self, seq: int) -> None:
        """Forget every delivery, and continue from a sequence."""
        for table in ("pending", "pending_removed", "claims", "ready", "exhausted"):
            self.db.execute(f"DELETE FROM {table} WHERE consumer=?", (self.id,))
        self.claims.forget()
        self.cursor = self.delivered = seq - 1
        self.unsettled = self.waiting = self.replay_shift = self.replay_due = 0
        self.due = NEVER
        self.last_ack = 0
        self.ahead_removals = -1
        self.dirty = True

    def offer_again(self, now: int) -> None:
        """Make all unsettled deliveries due: their holders may be gone."""
        self.db.execute(f"UPDATE pelton_deliveries SET due=? WHERE consumer=? AND seq<{STATE_SEQ}", (now, self.id))
        if self.unsettled:
            self.due, self.dirty = now, True

    def pass_to(self, seq: int) -> None:
        """Pass everything up to ``seq``, which was purged."""
        self.cursor = max(self.cursor, seq)
        # With deliver policy ``last_per_subject``, some messages may lie after it and before the cursor.
        self.delivered = max(self.delivered, seq)
        self.ahead_removals = -1
        self.dirty = True

    def has_ready(self) -> bool:
        return self.db.value("SELECT 1 FROM ready WHERE consumer=? LIMIT 1", (self.id,)) is not None

    # --- what a waiting pull checks

    def may_deliver(self, now: int) -> bool:
        """Return, cheaply and without writing, whether a pull could get something now."""
        if now < self.paused_until:
            return False
        if self.due <= now:
            return True
        if self.unsettled >= self.room and self.ahead_removals == self.log.state.removals:
            return False
        if self.waiting and self.has_ready():
            return True
        return self.cursor < self.log.state.last and self.replay_due <= now

    def next_due(self, now: int) -> int:
        """Return when something may become deliverable without a publish; or NEVER."""
        if now < self.paused_until:
            return self.paused_until
        return min(self.due, self.replay_due) if self.replay_due > now else self.due

    def is_in_step(self, seq: int, time: int, now: int) -> bool:
        """Return whether a replay at the original pace has reached a message stored at ``time``.

        Messages are delivered with the intervals in which they were stored; those stored since the consumer was
        created are delivered at once.
        """
        if seq > self.replay_upto:
            return True
        due = time + self.replay_shift if self.replay_shift else now
        if now < due:
            self.replay_due, self.dirty = due, True
            return False
        self.replay_shift, self.replay_due, self.dirty = now - time, 0, True
        return True

    def forget_missing(self, seq: int, subject: str | None) -> None:
        """Drop the rows of an unsettled message that no longer exists."""
        self.db.execute("DELETE FROM pelton_deliveries WHERE consumer=? AND seq=?", (self.id, seq))
        self.unsettled -= 1
        self.dirty = True
        if subject is not None:
            self.claims.release([(subject, seq)])

    def is_idle(self, now: int) -> bool:
        """Return whether it was unused for its ``inactive_threshold``: it then counts as removed."""
        threshold = self.config.inactive_threshold.ns
        return 0 < threshold <= now - max(self.last_active, self.last_ack) and self.idle_from() <= now

    def has_use_to_record(self, now: int) -> bool:
        """Whether some of its ``inactive_threshold`` has passed since a use was recorded: not each use is a write."""
        return 0 < self.config.inactive_threshold.ns <= _USES_RECORDED * (now - self.last_active)

    def record_use(self, now: int) -> None:
        """Note that it is in use, so that it is not removed as inactive."""
        if self.has_use_to_record(now):
            self.last_active, self.dirty = now, True

    def idle_from(self) -> int:
        """Return when it will have been unused for its ``inactive_threshold``.

        As on a server, one that is pulled from is in use until the last message that it has delivered is due again.
        """
        used = max(self.last_active, self.last_ack)
        if self.unsettled and not self.config.deliver_subject:
            used = max(used, integer(self.db.value("SELECT max(due) FROM pending WHERE consumer=?", (self.id,)) or 0))
        return used + self.config.inactive_threshold.ns


def due_after(config: ConsumerConfig, deliveries: int, now: int) -> int:
    """Return when a message delivered ``deliveries`` times falls due again."""
    if config.ack_policy == "flow_control":
        return NEVER
    if config.backoff:
        return later(now, config.backoff[min(deliveries, len(config.backoff)) - 1].ns)
    return later(now, config.ack_wait.ns)


def later(now: int, wait: int) -> int:
    """Return a time after ``now``, at most the last one that a row can hold: a wait can be 292 years."""
    return min(now + wait, LATEST)


def is_pending(database: Database, stream: int, seq: int) -> bool:
    """Whether any consumer of a stream has delivered a message that is not settled."""
    sql = "SELECT 1 FROM consumers JOIN pending ON consumer=id WHERE stream=? AND seq=? LIMIT 1"
    return database.value(sql, (stream, seq)) is not None


def drop_rows(database: Database, consumers: Sequence[int]) -> None:
    for consumer in consumers:
        database.execute("DELETE FROM consumers WHERE id=?", (consumer,))
        for table in _TABLES:
            database.execute(f"DELETE FROM {table} WHERE consumer=?", (consumer,))


# --- the info of a consumer


def consumer_info(consumer: ConsumerLog, waiting_pulls: int, now: int, *, push_bound: bool) -> ConsumerInfo:
    """Return the info of a consumer whose state is fresh; runs inside a transaction or snapshot."""
    # First, because this also forgets the messages that were removed.
    ahead = consumer.num_pending()
    least_seq, least_dseq, redelivered = consumer.unsettled_bounds()
    if consumer.waiting:
        # A message that became ready behind a later delivery is not settled either; a parked one comes after these.
        ready = consumer.db.value("SELECT min(seq) FROM ready WHERE consumer=?", (consumer.id,))
        least_seq = min((seq for seq in (least_seq, ready) if seq is not None), default=None)
    floor_seq = consumer.delivered if least_seq is None else min(least_seq - 1, consumer.delivered)
    floor_dseq = consumer.dseq if least_dseq is None else least_dseq - 1
    return ConsumerInfo(
        stream_name=consumer.log.name,
        name=consumer.name,
        created=rfc3339(consumer.created),
        config=consumer.config,
        # Before the first delivery, it is when the consumer was made.
        delivered=_position(consumer.dseq, consumer.delivered, consumer.last_active if consumer.dseq else 0),
        ack_floor=_position(floor_dseq, floor_seq, consumer.last_ack),
        num_ack_pending=consumer.unsettled,
        num_redelivered=redelivered,
        num_waiting=waiting_pulls,
        num_pending=ahead,
        push_bound=push_bound,
        paused=now < consumer.paused_until,
        pause_remaining=Duration.of_ns(max(consumer.paused_until - now, 0)),
        priority_groups=[_group(consumer, group, now) for group in consumer.config.priority_groups],
        ts=rfc3339(now),
    )


def _group(consumer: ConsumerLog, group: str, now: int) -> PriorityGroupState:
    sql = "SELECT pin, since FROM pins WHERE consumer=? AND grp=? AND seen>?"
    row = consumer.db.execute(sql, (consumer.id, group, now - consumer.config.priority_timeout.ns)).fetchone()
    pin, since = row or ("", 0)
    if not pin:
        return PriorityGroupState(group=group)
    return PriorityGroupState(group=group, pinned_client_id=text(pin), pinned_ts=rfc3339(integer(since)))


def _position(consumer_seq: int, stream_seq: int, last_active: int) -> SequenceInfo:
    return SequenceInfo(
        consumer_seq=consumer_seq, stream_seq=stream_seq, last_active=rfc3339(last_active) if last_active else ""
    )
