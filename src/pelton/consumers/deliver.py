"""Choosing what a pull gets: first redeliveries that are due, then messages that became ready, then new ones.

If there is a limit per subject, subjects stand in line, and new messages are read before those in
line are delivered; if all new ones are wanted and nobody stands in line, they need not join it first.

Runs inside a write transaction. A damaged message is never delivered: it is put in quarantine (a row records when and
why), logged, and skipped; other messages are not affected.

**The line of a consumer with a limit per subject: which subject is next.** A subject joins the end of the line when its
first message is read, and again when a message of it is settled and more wait behind it. So a subject with thousands of
messages has one turn, as one with a single message has: what is at the end of the line waits for each other subject
once. With ranks, there is a line for each (``rank_bypass.py``), and a subject stands in that of its next message.

Whoever is behind messages that were not read is not in line yet. So each pull first reads ahead, until
:data:`LONGEST` subjects stand in line: then the others join as these leave it, in the order of their oldest messages.
One pull reads :data:`READ_AT_MOST` messages, so that it does not take long; the next one goes on. Beyond the longest
line, it reads on only if a message with a rank is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Final, NamedTuple

from pelton.api import Delivered, PullRequest, headers
from pelton.api.events import MaxDeliveries, MessageQuarantined
from pelton.consumers.log import NEVER, ConsumerLog, due_after
from pelton.consumers.settle import Interest, exhaust, remove_settled
from pelton.runtime import RankBypass
from pelton.storage import MessageRow, RowValues, all_intact, decoded, intact, integer
from pelton.storage.damage import note_damaged_message

LONGEST: Final = 512
READ_AT_MOST: Final = 16_384
_READ_AT_LEAST: Final = 256
_FIRST: Final = "SELECT turn FROM ready WHERE consumer=?+0 AND rank=0 ORDER BY turn LIMIT 1"
_NEXT: Final = "SELECT seq, subject, rank FROM ready WHERE consumer=?+0 ORDER BY rank DESC, turn LIMIT ?+0"
_NEXT_OF: Final = "SELECT seq, subject, rank FROM ready WHERE consumer=?+0 AND rank=?+0 ORDER BY turn LIMIT ?+0"


class ReadyRow(NamedTuple):
    """A row of ``ready``: a message that can be delivered, its subject without its rank, its rank."""

    seq: int
    subject: str
    rank: int


class SubjectLine:
    """The line of one consumer in a write transaction."""

    def __init__(self, consumer: ConsumerLog) -> None:
        self._c = consumer
        # How many of each rank were there, as far as anybody asked, when the rows were returned that are delivered now.
        self._waiting: dict[int, int] = {}

    # --- joining

    def read_ahead(self) -> None:
        """Let subjects join the line whose messages were not read yet."""
        c, budget = self._c, READ_AT_MOST
        room = self._room()
        while budget > 0 and c.cursor < c.log.state.last and (room > 0 or self._has_ranked_ahead()):
            limit = min(budget, max(room, _READ_AT_LEAST))
            found = c.log.table.scan_subjects(c.cursor + 1, c.log.state.last, limit, c.condition)
            room -= self.join(found)
            budget -= limit
            if len(found) < limit:
                # The caller passes the rest.
                return

    def join(self, messages: Sequence[tuple[int, str]]) -> int:
        """Read messages (sequence, subject); return how many subjects joined."""
        c = self._c
        if not messages:
            return 0
        rank_of = c.rank_of if c.ranks else _no_rank
        joined = c.claims.join([(seq, c.claim_of(subject), rank_of(subject)) for seq, subject in messages])
        c.cursor = messages[-1][0]
        c.ahead -= len(messages)
        c.waiting += len(messages)
        c.dirty = True
        return joined

    def _room(self) -> int:
        """Return how many more may join; turns that nobody has any more count as if they were still there."""
        first = self._c.db.value(_FIRST, (self._c.id,))
        return LONGEST if first is None else LONGEST - (self._c.claims.turns - integer(first) + 1)

    def _has_ranked_ahead(self) -> bool:
        c = self._c
        return any(c.log.reader.last_seq_of(f"{prefix}>") > c.cursor for prefix in c.ranks[1:])

    # --- being served

    def next(self, limit: int) -> list[ReadyRow]:
        """Return the messages that are next, in order."""
        c = self._c
        rows = decoded(ReadyRow, c.db.run(_NEXT, (c.id, limit)).fetchall())
        if not rows or not rows[0].rank:
            self._waiting = {}
            return rows
        by_rank = {rows[0].rank: [row for row in rows if row.rank == rows[0].rank]}
        for rank in range(rows[0].rank):
            by_rank[rank] = decoded(ReadyRow, c.db.run(_NEXT_OF, (c.id, rank, limit)).fetchall())
        self._waiting = {rank: len(of_rank) for rank, of_rank in by_rank.items()}
        bypass, left, order = RankBypass.of_number(c.bypassed), dict(self._waiting), list[ReadyRow]()
        while any(left.values()) and len(order) < limit:
            rank = bypass.next(left)
            bypass = bypass.after(rank, left)
            order.append(by_rank[rank][-left[rank]])
            left[rank] -= 1
        return order

    def served(self, rows: Sequence[ReadyRow]) -> None:
        """Note that the first of the messages of :meth:`next` were delivered."""
        c, left = self._c, self._waiting
        if not left:
            c.bypassed = 0
            return
        bypass = RankBypass.of_number(c.bypassed)
        for row in rows:
            bypass = bypass.after(row.rank, left)
            left[row.rank] -= 1
        c.bypassed = bypass.number


def _no_rank(_subject: str) -> int:
    return 0


_log: Final = logging.getLogger("pelton.consumers")
_SCAN_AT_LEAST: Final = 16
_SCAN_AT_MOST: Final = 4096
# More than an ack's subject has beside names, and the most bytes that a letter of a name takes.
_LONGEST_NUMBERS: Final = 128
_BYTES_A_LETTER: Final = 4
# Beyond this distance the index of subjects is asked first whether any message matches, instead of a scan.
_FAR: Final = 65_536
# How many rows are searched for a damaged one, while others wait.
_LOOK_AT_MOST: Final = 65_536

_KEEP_RUN: Final = (
    "INSERT INTO pelton_deliveries SELECT ?1, seq, seq+?2, 1, ?3, NULL, 0 FROM {table} WHERE seq BETWEEN ?4 AND ?5"
)

_LEAST_DUE: Final = (
    "SELECT min(due) FROM (SELECT due FROM pending WHERE consumer=?1 "
    "UNION ALL SELECT due FROM pending_removed WHERE consumer=?1)"
)


class _DueRow(NamedTuple):
    """A row of ``pending``: a message that is due again, its deliveries so far, its subject if claims are kept."""

    seq: int
    deliveries: int
    subject: str | None


class Delivery:
    """One pull being served from a consumer at the time ``now`` (wall nanoseconds)."""

    def __init__(
        self, consumer: ConsumerLog, request: PullRequest, now: int, token_floor: int, interest: Interest | None = None
    ) -> None:
        self._c = consumer
        self._interest = interest
        self._log = consumer.log
        self._batch = request.batch
        self._bytes_left = request.max_bytes if request.max_bytes > 0 else NEVER
        self._now = now
        self._token_floor = token_floor
        self._out: list[Delivered] = []
        self._pending: list[tuple[int, int, int, int, int, str | None]] = []
        # Runs of first deliveries: first and last sequence, and the offset from a sequence to its delivery number.
        self._runs: list[tuple[int, int, int]] = []
        self._claims: list[tuple[int, str, int, int, int]] = []
        self._line = SubjectLine(consumer)
        self._full = False
        self._held = False

    def run(self) -> list[Delivered]:
        """Return the messages for the pull in order of delivery, with every row written."""
        c = self._c
        self._log.advance(self._now)
        self._log.appender.flush()
        c.count_ahead()
        if self._now < c.paused_until:
            return []
        if c.due <= self._now:
            self._redeliver()
        if c.per_subject and not c.replay_upto and self._wants():
            self._line_up()
        if c.waiting and self._wants():
            self._deliver_ready()
        if self._wants() and c.cursor < self._log.state.last:
            self._deliver_new()
        self._write()
        self._number_pending()
        if (state := self._log.state).jumps:
            for one in self._out:
                one.jumped_ns = state.counts_from(one.seq, one.time_ns) - one.time_ns
        return self._out

    @property
    def blocked(self) -> bool:
        """Whether nothing was delivered because the first message is larger than the pull allows."""
        return self._full and not self._out

    def _wants(self) -> bool:
        c = self._c
        return not self._full and not self._held and len(self._out) < self._batch and c.unsettled < c.room

    # --- redelivery

    def _redeliver(self) -> None:
        c = self._c
        sql = "SELECT seq, n, subject FROM pending WHERE consumer=?+0 AND due<=? ORDER BY due, seq LIMIT ?+0"
        limit = self._batch + _SCAN_AT_LEAST
        more = True
        while more:
            again = decoded(_DueRow, c.db.run(sql, (c.id, self._now, limit)).fetchall())
            before = len(self._out)
            for pending in again:
                if self._full or len(self._out) >= self._batch:
                    break
                self._deliver_again(pending)
            # Only if all of them were exhausted or gone can others be due that were not read.
            more = len(again) == limit and len(self._out) == before and not self._full
        c.db.execute("DELETE FROM pending_removed WHERE consumer=? AND due<=?", (c.id, self._now))
        least = c.db.value(_LEAST_DUE, (c.id,))
        c.due = NEVER if least is None else integer(least)
        c.dirty = True

    def _deliver_again(self, pending: _DueRow) -> None:
        c, (seq, deliveries, subject) = self._c, pending
        row = self._log.reader.get(seq)
        if row is None or not self._intact(row):
            c.forget_missing(seq, subject)
            return
        if 0 < c.config.max_deliver <= deliveries:
            # Exhausted: as in NATS, it stays in the stream and is not redelivered; its subject continues.
            exhaust(c, seq)
            event = MaxDeliveries(stream=self._log.name, consumer=c.name, stream_seq=seq, deliveries=deliveries)
            c.advise(event)
            c.forget_missing(seq, subject)
            return
        if not self._take(row, deliveries + 1):
            return
        due = due_after(c.config, deliveries + 1, self._now)
        values = (c.dseq, deliveries + 1, due, c.id, seq)
        c.db.execute("UPDATE pelton_deliveries SET dseq=?, n=?, due=?, waits=0 WHERE consumer=? AND seq=?", values)

    # --- ready: the next of a subject whose predecessor was settled, or which had none

    def _line_up(self) -> None:
        """Let subjects join the line that new messages have, unless all of these are delivered at once."""
        c = self._c
        if c.ahead > 0 and (c.ahead > self._wanted() or not self._is_simple or (c.waiting and c.has_ready())):
            self._line.read_ahead()

    def _wanted(self) -> int:
        return min(self._batch - len(self._out), self._c.room - self._c.unsettled)

    def _deliver_ready(self) -> None:
        c = self._c
        while self._wants():
            rows = self._line.next(self._wanted())
            if not rows:
                return
            unsound: set[int] = set()
            done = self._deliver_those_ready(rows, unsound)
            self._line.served(done)
            c.no_longer_ready([ready.seq for ready in done])
            c.waiting -= len(done)
            c.dirty = True
            # Their subjects go on with what follows: only now, since that becomes ready in turn.
            c.claims.release(
                [(ready.subject, ready.seq) for ready in done if ready.seq in unsound] if c.per_subject else ()
            )
            if len(done) < len(rows):
                return

    def _deliver_those_ready(self, rows: Sequence[ReadyRow], unsound: set[int]) -> Sequence[ReadyRow]:
        """Deliver as many as fit; return those that need no longer wait, delivered or ``unsound``."""
        stored = self._log.reader.get_many([ready.seq for ready in rows])
        found = {row.seq: row for row in stored}
        if self._is_simple and len(stored) == len(rows) and all_intact(stored):
            claimed = [ready.subject for ready in rows] if self._c.per_subject else None
            self._hand_out([found[ready.seq] for ready in rows], claimed)
            return rows
        for place, ready in enumerate(rows):
            row = found.get(ready.seq)
            if row is None or not self._intact(row):
                unsound.add(ready.seq)
            elif self._take(row, 1):
                self._keep_pending(row, ready.subject if self._c.per_subject else None)
            else:
                return rows[:place]
        return rows

    # --- new

    def _deliver_new(self) -> None:
        c = self._c
        if c.condition is not None and not c.literal and self._log.state.last - c.cursor > _FAR:
            # So the jobs of others, maybe millions, are not searched for one's own.
            c.cursor = self._log.reader.none_between(c.cursor, c.filters)
            c.dirty = True
        while self._wants() and c.cursor < self._log.state.last:
            wanted = self._wanted()
            limit = min(max(wanted + wanted // 2 if c.per_subject else wanted, 1), _SCAN_AT_MOST)
            upto = self._bound()
            if upto <= c.cursor:
                self._pass_all()
                return
            found = self._log.table.scan_values(c.cursor + 1, upto, limit, c.condition)
            is_last = limit == wanted or len(found) < limit
            if found and (self._is_simple or (is_last and self._fit(found))) and all_intact(found):
                is_through = self._claim_and_take(found, wanted) if c.per_subject else self._take_all(found)
            else:
                is_through = self._offer(list(map(MessageRow._make, found)))
            if len(found) < limit and is_through:
                # No match is left: the rest need not be scanned again.
                self._pass_all()

    def _bound(self) -> int:
        """Return the last sequence that can match: for a literal filter its subject's last."""
        if self._c.literal:
            row = self._log.state.subject_row(self._c.literal)
            return min(row.last, self._log.state.last) if row.msgs > 0 else 0
        return self._log.state.last

    def _pass_all(self) -> None:
        c = self._c
        c.cursor = max(c.cursor, self._log.state.last)
        if c.ahead > 0:
            self._look_for_damage(c.ahead)
        c.ahead = 0
        c.dirty = True

    def _look_for_damage(self, missing: int) -> None:
        """Report that fewer messages match than were counted: a damaged subject matches no filter."""
        log = self._log
        _log.error(
            "%d messages of stream %r for consumer %r no longer match its filters: run pelton verify",
            missing,
            log.name,
            self._c.name,
            extra={"stream": log.name, "consumer": self._c.name},
        )
        if log.state.last - log.state.first < _LOOK_AT_MOST:
            for seq in range(log.state.first, log.state.last + 1, _SCAN_AT_MOST):
                for row in log.table.scan(seq, min(seq + _SCAN_AT_MOST - 1, log.state.last), _SCAN_AT_MOST):
                    self._intact(row)

    def _offer(self, rows: list[MessageRow]) -> bool:
        """Deliver new rows one by one; return whether all of them were passed."""
        c = self._c
        if c.per_subject:
            c.claims.learn([c.claim_of(row.subject) for row in rows])
        for row in rows:
            if not self._wants():
                return False
            if c.replay_upto and not c.is_in_step(row.seq, row.ts, self._now):
                self._held = True
                return False
            subject = c.claim_of(row.subject) if c.per_subject else None
            rank = c.rank_of(row.subject)
            if not intact(row):
                self._intact(row)
            elif subject is not None and not self._claim(subject, row.seq, rank):
                c.waiting += 1
            elif self._take(row, 1):
                self._keep_pending(row, subject)
            else:
                if subject is not None:
                    self._unclaim(subject)
                return False
            c.cursor = row.seq
            c.ahead -= 1
            c.dirty = True
        return True

    @property
    def _is_simple(self) -> bool:
        """Whether new messages are delivered unchanged, without a decision for each."""
        c = self._c
        return not (c.replay_upto or c.config.headers_only) and self._bytes_left == NEVER

    def _fit(self, rows: Sequence[RowValues]) -> bool:
        """Whether new messages, the last ones of this pull, are delivered unchanged, however few bytes it may take."""
        c = self._c
        if c.replay_upto or c.config.headers_only:
            return False
        names = _LONGEST_NUMBERS + _BYTES_A_LETTER * (len(self._log.name) + len(c.name))
        sizes = [_BYTES_A_LETTER * len(subject) + len(hdr or b"") + len(data) for _, _, subject, hdr, data, _ in rows]
        return sum(sizes) + names * len(rows) <= self._bytes_left

    def _take_all(self, rows: Sequence[RowValues]) -> bool:
        """Deliver new rows that are intact: what ``_offer`` does, for all of them at once."""
        self._pass(rows)
        self._hand_out(rows, None)
        return True

    def _claim_and_take(self, rows: Sequence[RowValues], most: int) -> bool:
        """The same with a limit per subject; return whether all rows were passed."""
        c = self._c
        if c.ranks and any(c.rank_of(subject) for _, _, subject, _, _, _ in rows):
            self._line.join([(seq, subject) for seq, _, subject, _, _, _ in rows])
            self._deliver_ready()
            return True
        claimed = [c.claim_of(subject) for _, _, subject, _, _, _ in rows]
        held = c.claims.claim_all(claimed, most)
        passed = rows[: len(held)]
        self._pass(passed)
        self._claims += [
            (c.id, subject, row[0], int(is_held), 0)
            for row, subject, is_held in zip(passed, claimed, held, strict=False)
        ]
        taken = list(compress(passed, held))
        c.waiting += len(passed) - len(taken)
        if taken:
            self._hand_out(taken, list(compress(claimed, held)))
        return len(passed) == len(rows)

    def _pass(self, rows: Sequence[RowValues]) -> None:
        c = self._c
        c.cursor = rows[-1][0]
        c.ahead -= len(rows)
        c.dirty = True

    def _hand_out(self, rows: Sequence[RowValues], claimed: Sequence[str] | None) -> None:
        c = self._c
        first, count, token = c.dseq + 1, len(rows), self._token_floor + c.dseq + 1
        seqs: Sequence[int]
        if count == 1:
            [(seq, ts, subject, hdr, data, _)] = rows
            self._out.append(Delivered(subject, seq, ts, hdr, data, first, 1, 0, self._log.name, c.name, token))
            seqs = (seq,)
        else:
            seqs, times, subjects, blocks, payloads, _ = zip(*rows, strict=True)
            numbers, tokens = range(first, first + count), range(token, token + count)
            names = (repeat(self._log.name), repeat(c.name))
            once, none = repeat(1), repeat(0)
            self._out += map(Delivered, subjects, seqs, times, blocks, payloads, numbers, once, none, *names, tokens)
        c.dseq += count
        c.delivered = max(c.delivered, *seqs)
        if c.config.ack_policy != "none":
            self._keep_all_pending(seqs, first, claimed)

    def _keep_all_pending(self, seqs: Sequence[int], number: int, claimed: Sequence[str] | None) -> None:
        c = self._c
        due = due_after(c.config, 1, self._now)
        c.unsettled += len(seqs)
        c.due = min(c.due, due)
        if claimed is None and len(seqs) > 1 and list(seqs) == list(range(seqs[0], seqs[-1] + 1)):
            self._runs.append((seqs[0], seqs[-1], number - seqs[0]))
            return
        numbers = range(number, number + len(seqs))
        self._pending += zip(repeat(c.id), seqs, numbers, repeat(1), repeat(due), claimed or repeat(None))

    def _claim(self, subject: str, seq: int, rank: int) -> bool:
        """Claim a subject for a message; return False if it has to wait behind others."""
        c = self._c
        taken = c.claims.of(subject)
        free = taken.held < c.per_subject and not taken.has_parked
        if free:
            taken.held += 1
        else:
            taken.has_parked = True
        self._claims.append((c.id, subject, seq, 1 if free else 0, rank))
        return free

    def _unclaim(self, subject: str) -> None:
        self._c.claims.of(subject).held -= 1
        self._claims.pop()

    # --- shared

    def _take(self, row: MessageRow, deliveries: int) -> bool:
        """Add one message to the pull; return False if its bytes no longer fit."""
        seq, ts, subject, hdr, data, _ = row
        c = self._c
        if c.config.headers_only:
            hdr, data = headers.with_value(hdr, headers.MSG_SIZE, str(len(data))), b""
        if self._bytes_left != NEVER and not self._fits(row, hdr, data, deliveries):
            return False
        c.dseq = dseq = c.dseq + 1
        if seq > c.delivered:
            c.delivered = seq
        c.dirty = True
        self._out.append(
            Delivered(
                subject, seq, ts, hdr, data, dseq, deliveries, 0, self._log.name, c.name, self._token_floor + dseq
            )
        )
        return True

    def _fits(self, row: MessageRow, hdr: bytes | None, data: bytes, deliveries: int) -> bool:
        """Subtract a message's bytes from what is left, counted as a NATS server does: with its ack subject."""
        c, left = self._c, self._c.ahead + self._c.waiting - (deliveries == 1)
        reply = f"$JS.ACK.{self._log.name}.{c.name}.{deliveries}.{row.seq}.{c.dseq + 1}.{row.ts}.{left}"
        size = len(row.subject.encode()) + len(reply.encode()) + len(hdr or b"") + len(data)
        self._full = size > self._bytes_left
        if not self._full:
            self._bytes_left -= size
        return not self._full

    def _keep_pending(self, row: MessageRow, subject: str | None) -> None:
        c = self._c
        if c.config.ack_policy == "none":
            return
        due = due_after(c.config, 1, self._now)
        self._pending.append((c.id, row.seq, c.dseq, 1, due, subject))
        c.unsettled += 1
        if due < c.due:
            c.due = due

    def _write(self) -> None:
        c = self._c
        for first, last, shift in self._runs:
            sql = _KEEP_RUN.format(table=self._log.table.name)
            c.db.run(sql, (c.id, shift, due_after(c.config, 1, self._now), first, last))
        if self._pending:
            c.db.run_many("INSERT INTO pelton_deliveries VALUES(?, ?, ?, ?, ?, ?, 0)", self._pending)
        if self._claims:
            c.db.run_many("INSERT INTO claims VALUES(?, ?, ?, ?, ?)", self._claims)
        if self._out:
            c.last_active = self._now
            if c.config.ack_policy == "none":
                remove_settled(c, [delivered.seq for delivered in self._out], self._interest)

    def _number_pending(self) -> None:
        """Set on each delivery how many messages were pending after it."""
        left = self._c.ahead + self._c.waiting
        for delivered in reversed(self._out):
            delivered.num_pending = left
            if delivered.num_delivered == 1:
                left += 1

    def _intact(self, row: MessageRow) -> bool:
        """Check a row; a damaged one is put in quarantine and reported, never delivered."""
        if intact(row):
            return True
        stream, seq = self._log, row.seq
        reason = "the checksum does not match the row"
        sql = "INSERT OR IGNORE INTO quarantine VALUES(?, ?, ?, ?)"
        self._c.db.execute(sql, (stream.id, seq, self._now, reason))
        note_damaged_message(self._c.db.path, stream.name, seq)
        self._c.advise(MessageQuarantined(stream=stream.name, stream_seq=seq, reason=reason))
        _log.error(
            "message %d of stream %r is damaged and was put in quarantine: %s",
            seq,
            stream.name,
            reason,
            extra={"stream": stream.name, "seq": seq, "consumer": self._c.name},
        )
        return False
