"""Applying acks to their deliveries, by the table of states below.

An ack names the delivery it belongs to. An ack of an earlier delivery, or of a settled message, is rejected with an
error; it never counts twice, and never affects the other acks.

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
changes nothing and is rejected; an ack of a removed message is accepted in time, and harmless later. Everything else
that moves a message (pulls, time, limits) moves rows in SQL: ``docs/explanation/consumers.md`` draws all of it, and a
test plays each line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from pelton.api import AckKind, AckOp, AckRejectedError, PeltonError
from pelton.api.events import AckSample, MessageNaked, MessageTerminated
from pelton.api.times import Duration
from pelton.consumers.interest import Interest, remove_settled
from pelton.consumers.log import ConsumerLog, due_after, later
from pelton.consumers.rules import ALL
from pelton.storage import TOKEN_EPOCH, decoded, integer, integers, runs

Answered = Literal["delivered", "due", "acked", "termed"]
DeliveryState = Answered | Literal["parked", "ready", "exhausted", "removed"]

AFTER_ACK: Final[Mapping[AckKind, Answered]] = {
    "ack": "acked",
    "term": "termed",
    "nak": "due",
    "progress": "delivered",
}
SETTLED: Final[frozenset[Answered]] = frozenset({"acked", "termed"})


_MANY: Final = 8
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
        self._again: list[tuple[int, int, int, int]] = []
        # Refusals of acks that had nothing left to settle: harmless if nothing is published with them.
        self._harmless: set[PeltonError] = set()

    def run(self, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Apply acks in order; return one entry per ack: None, or why nothing may be published with it."""
        answers = self.take(acks)
        self.write()
        return answers

    def of_acks_alone(self, answers: list[PeltonError | None]) -> list[PeltonError | None]:
        """Return the answers for acks with which nothing is to be published."""
        if not self._harmless:
            return answers
        return [None if answer in self._harmless else answer for answer in answers]

    def take(self, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Check acks as :meth:`run` does; valid ones take effect with :meth:`write`."""
        if self._c.config.ack_policy == "none" or self._take_all(acks):
            return [None] * len(acks)
        known = self._known(acks)
        if self._done:
            known = {seq: found for seq, found in known.items() if seq not in self._done}
        return [self._one(ack, known) for ack in acks]

    def _take_all(self, acks: Sequence[AckOp]) -> bool:
        """Settle a large group at once if all are plain acks of held deliveries, which is the usual case."""
        c = self._c
        if len(acks) < _MANY or c.config.ack_policy != "explicit" or c.sampled or self._done:
            return False
        done = {ack.seq: ack.consumer_seq for ack in acks if ack.kind == "ack"}
        if len(done) < len(acks):
            return False
        where, bindings = self._among(done)
        held: dict[int, int] = dict(c.db.execute(f"SELECT seq, dseq FROM pending WHERE {where}", bindings))
        # Like `_is_of_another`, for all of them.
        floor = c.token_floor
        if not done.items() <= held.items() or any(TOKEN_EPOCH <= ack.token <= floor for ack in acks):
            return False
        self._done = dict.fromkeys(done)
        if c.per_subject:
            sql = f"SELECT seq, subject FROM pending WHERE {where}"
            claimed: dict[int, str | None] = dict(c.db.execute(sql, bindings))
            self._done = {seq: claimed[seq] for seq in done}
        return True

    def _among(self, sequences: Collection[int]) -> tuple[str, tuple[int | str, ...]]:
        """Return the condition for rows of these messages, and maybe of others between them, with its bindings."""
        first, last = min(sequences, default=0), max(sequences, default=0)
        if last - first < 4 * len(sequences):
            return "consumer=? AND seq BETWEEN ? AND ?", (self._c.id, first, last)
        listed = f"[{','.join(map(str, sequences))}]"
        return "consumer=? AND seq IN (SELECT value FROM json_each(?))", (self._c.id, listed)

    def _is_of_another(self, ack: AckOp) -> bool:
        """Whether a delivery is of a deleted consumer of this name; a token that is not ours tells nothing."""
        return TOKEN_EPOCH <= ack.token <= self._c.token_floor

    def _known(self, acks: Sequence[AckOp]) -> Known:
        c = self._c
        where, bindings = self._among([ack.seq for ack in acks])
        if c.config.ack_policy == "all":
            where, bindings = "consumer=? AND seq<=?", (c.id, max(ack.seq for ack in acks))
        rows = c.db.execute(f"SELECT seq, dseq, subject, n FROM pending WHERE {where}", bindings).fetchall()
        return {held.seq: held for held in decoded(_PendingRow, rows)}

    def _one(self, ack: AckOp, known: Known) -> PeltonError | None:
        found = known.get(ack.seq)
        if self._is_of_another(ack):
            return self._rejected(ack, _OF_ANOTHER)
        if found is None:
            return self._one_removed(ack, known)
        if found.dseq != ack.consumer_seq and not ack.is_of_any:
            return self._rejected(ack, _REPLACED)
        after = AFTER_ACK[ack.kind]
        if after == "due" and ack.is_of_any and not 0 < ack.consumer_seq <= self._c.dseq + 1:
            # As on NATS: what was not delivered, nor is the next to be, cannot be given back.
            return self._rejected(ack, _REPLACED)
        self._tell(ack, after, found.deliveries)
        if after in SETTLED:
            self._settle(ack, known)
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

    def _one_removed(self, ack: AckOp, known: Known) -> PeltonError | None:
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
            self._settle_upto(ack, known)
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

    def _settle(self, ack: AckOp, known: Known) -> None:
        if self._c.config.ack_policy == "all":
            self._settle_upto(ack, known)
        else:
            self._done[ack.seq] = known.pop(ack.seq).subject

    def _settle_upto(self, ack: AckOp, known: Known) -> None:
        self._c.db.execute("DELETE FROM pending_removed WHERE consumer=? AND seq<=?", (self._c.id, ack.seq))
        for seq in [seq for seq in known if seq <= ack.seq]:
            self._done[seq] = known.pop(seq).subject

    def write(self) -> None:
        """Apply the acks that were taken; call it once."""
        c = self._c
        if self._again:
            c.db.executemany("UPDATE pending SET due=?, waits=? WHERE consumer=? AND seq=?", self._again)
            c.due = min(c.due, min(due for due, _, _, _ in self._again))
            c.dirty = True
        if not self._done:
            return
        if len(found := runs(self._done)) < _MANY:
            for first, last in found:
                c.db.execute("DELETE FROM pending WHERE consumer=? AND seq BETWEEN ? AND ?", (c.id, first, last))
        else:
            c.db.executemany("DELETE FROM pending WHERE consumer=? AND seq=?", [(c.id, seq) for seq in self._done])
        c.unsettled -= len(self._done)
        c.last_ack = self._now
        c.dirty = True
        remove_settled(c, self._done, self._interest)
        if c.per_subject:
            c.claims.release([(subject, seq) for seq, subject in self._done.items() if subject is not None])
