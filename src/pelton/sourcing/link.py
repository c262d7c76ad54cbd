"""Copies messages from an origin to one stream that sources or mirrors it, and remembers how far it is.

**The position of a source, as rows: the last sequence taken, and the parked messages.** A copy of the row is kept in
memory while ``is_fresh``; a change is saved in the same transaction as the messages that it describes.

**Copies messages from an origin to one stream that sources or mirrors it, inside the transaction that stored them.** A
link has a position: all messages of its origin up to there were taken or skipped. It continues from there whenever
messages were stored in the origin, in the same transaction, before the origin's limits are applied; and if that is too
much for one transaction (a new source of a large stream), in further ones, by any process that has the store open.
Messages and position are rows of one transaction, so no crash makes it take one twice or leave one out.

Refused messages are never lost. A message for whose subject there is no space (or that is refused for its content)
is *parked*: the link skips it, and all that follow on its subject, and continues with others. Each time a
message is removed from that subject, the oldest parked ones are retried, in the transaction of the removal. If the
whole stream is full the link *stalls*: it stops before the message and continues when any message is removed. A mirror
never parks: it would change the order.

Invariants: a parked message is at or before the position; nothing of a subject is taken while an earlier message of
it is parked.

A source may name a durable consumer of the origin (ADR-60): then the link takes what that consumer delivers, and
settles it there when it is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from pelton.api import (
    ApiError,
    Delivered,
    LimitError,
    MaxMessagesPerSubjectError,
    MessageTooLargeError,
    Outgoing,
    parse_rfc3339,
)
from pelton.api.info import ErrorBody
from pelton.sourcing.plan import Plan, identity_of, unconditional
from pelton.storage import Database, MessageRow, Removed, column, intact, integers, text
from pelton.storage.messages import row_checksum
from pelton.streams import StreamLog, is_bare
from pelton.streams.counters import CounterOrigin

Kind = Literal["Source", "Mirror"]


class Consumed(Protocol):
    """The consumer that a source names; it decides where the source starts, what it takes, and when."""

    def is_of(self, name: str) -> bool:
        """Whether it is a consumer of this name, and can be used."""

    def offer_again(self) -> None:
        """Let everything that was delivered and is not acknowledged be delivered again."""

    def take(self, most: int) -> Sequence[MessageRow]:
        """Deliver the next messages to the source, in this transaction; none if the consumer cannot be used."""

    def settle(self, sequences: Collection[int]) -> None:
        """Acknowledge delivered messages."""

    def give_back(self, sequences: Collection[int]) -> None:
        """Let delivered messages be delivered again."""

    def is_ready(self) -> bool:
        """Whether it might deliver now; a cheap check."""

    def next_due(self) -> int:
        """Return when it might deliver without a change of the store: a pause, a replay; ``NEVER`` if not at all."""

    def num_pending(self) -> int:
        """Return how many messages it has yet to deliver."""

    def problem(self, kind: Kind) -> ApiError | None:
        """Return why it cannot be used."""


_LOAD: Final = (
    "SELECT id, origin, seq, parked, taken, active, stalled, problem FROM sourcing WHERE stream=? AND source=?"
)
_SAVE: Final = "UPDATE sourcing SET origin=?, seq=?, parked=?, taken=?, active=?, stalled=?, problem=? WHERE id=?"
_MAKE: Final = "INSERT INTO sourcing VALUES(NULL, ?, ?, ?, ?, 0, 0, 0, 0, '')"


class Position:
    """The position of the source ``key`` of the stream with row id ``stream``.

    ``origin`` is the row id of the stream that ``seq`` refers to, ``taken`` the last sequence that was actually taken,
    and ``active`` when; 0 for none. ``stalled``: the stream has no space for the next message. ``problem``: the error,
    as JSON, why a message cannot be taken, other than a lack of space.
    """

    is_fresh: bool
    id: int
    origin: int
    seq: int
    parked: int
    taken: int
    active: int
    stalled: bool
    problem: str

    def __init__(self, database: Database, stream: int, key: str) -> None:
        self._db = database
        self._stream = stream
        self.key = key
        self.is_fresh = False
        self.id = self.origin = self.seq = self.parked = self.taken = self.active = 0
        self.stalled = False
        self.problem = ""

    def load(self) -> bool:
        """Read the row if it may have changed; return whether there is one."""
        if self.is_fresh:
            return bool(self.id)
        row = self._db.execute(_LOAD, (self._stream, self.key)).fetchone()
        self.is_fresh = True
        if row is None:
            self.id = self.origin = self.seq = self.parked = self.taken = self.active = 0
            self.stalled, self.problem = False, ""
            return False
        *numbers, stalled, problem = row
        self.id, self.origin, self.seq, self.parked, self.taken, self.active = integers(numbers)
        self.stalled, self.problem = bool(stalled), text(problem)
        return True

    def begin(self, origin: int, seq: int) -> None:
        """Start after ``seq`` of an origin; forget the state of an earlier stream of its name."""
        if self.load():
            self.forget_parked()
            self.origin, self.seq, self.taken, self.stalled, self.problem = origin, seq, 0, False, ""
            self.save()
            return
        self._db.execute(_MAKE, (self._stream, self.key, origin, seq))
        self.is_fresh = False
        self.load()

    def save(self) -> None:
        state = (self.origin, self.seq, self.parked, self.taken, self.active, int(self.stalled), self.problem, self.id)
        self._db.execute(_SAVE, state)

    def took(self, sequences: Sequence[int], now: int) -> None:
        """Note that messages were taken."""
        self.taken = max(self.taken, *sequences)
        self.active = now

    # --- parked messages

    def park(self, subject: str, seq: int) -> None:
        self._db.execute("INSERT INTO parked VALUES(?, ?, ?)", (self.id, subject, seq))
        self.parked += 1

    def is_parked(self, subject: str) -> bool:
        if not self.parked:
            return False
        sql = "SELECT 1 FROM parked WHERE source=? AND subject=? LIMIT 1"
        return self._db.value(sql, (self.id, subject)) is not None

    def parked_of(self, subject: str, limit: int) -> list[int]:
        """Return the sequences parked for a subject, in order."""
        sql = "SELECT seq FROM parked WHERE source=?+0 AND subject=? COLLATE BINARY ORDER BY seq LIMIT ?+0"
        return column(self._db.execute(sql, (self.id, subject, limit)))

    def parked_subjects(self) -> list[str]:
        sql = "SELECT DISTINCT subject FROM parked WHERE source=?"
        return [text(subject) for (subject,) in self._db.execute(sql, (self.id,)).fetchall()]

    def all_parked(self) -> list[int]:
        return column(self._db.execute("SELECT seq FROM parked WHERE source=?", (self.id,)))

    def unpark(self, subject: str, seq: int) -> None:
        """Remove a message from the parked ones, if it is one."""
        self._db.execute("DELETE FROM parked WHERE source=? AND subject=? AND seq=?", (self.id, subject, seq))
        self.parked -= self._db.connection.changes()

    def forget_parked(self) -> None:
        if self.parked:
            self._db.execute("DELETE FROM parked WHERE source=?", (self.id,))
            self.parked = 0


_log: Final = logging.getLogger("pelton.sourcing")
_CHUNK: Final = 1024
_AT_ONCE: Final = 8192
_RETRIED: Final = 64
_SEALED: Final = 10109
_MAY_WAIT: Final = (MaxMessagesPerSubjectError, MessageTooLargeError)
_encode: Final = msgspec.json.Encoder().encode


class Intake:
    """Stores what a stream takes from ``origin``, by a plan: what is alike wherever that is."""

    # Whether what is refused for its subject alone waits aside (it is read again from the origin), and others go on.
    _parks = True

    def __init__(
        self, database: Database, stream: StreamLog, plan: Plan, now: Callable[[], int], origin: str, identity: str
    ) -> None:
        self.stream = stream
        self.plan = plan
        self.position: Position = Position(database, stream.id, plan.key)
        self._now = now
        self.mirrors: bool = stream.config.mirror is not None
        self._origin = origin
        self._identity = identity

    # --- sources

    def _source(self, rows: Sequence[MessageRow]) -> list[int]:
        stream, taken = self.stream, []
        if stream.appender.is_plain:
            bare = [row for row in rows if is_bare(row.hdr) and intact(row)]
            if len(bare) == len(rows):
                self._append_plain(bare)
                return [row.seq for row in rows]
        for row in rows:
            if not self._is_sound(row):
                continue
            subject = stream.appender.stored_subject(self.plan.subject_of(row.subject))
            if self._parks and self.position.is_parked(subject):
                self.position.park(subject, row.seq)
                continue
            refusal = self._append(row)
            if refusal is None:
                taken.append(row.seq)
            elif not self._parks or _is_for_all(refusal):
                self._stall(row.seq, refusal)
                break
            else:
                self._note(refusal)
                self.position.park(subject, row.seq)
        return taken

    def _append_plain(self, rows: Sequence[MessageRow]) -> None:
        plan, identity = self.plan, self._identity
        messages = [
            Outgoing(plan.subject_of(subject), data, plan.sign(hdr, seq, subject, identity))
            for seq, _, subject, hdr, data, _ in rows
        ]
        self.stream.appender.append_plain(messages, self._now())

    def _append(self, row: MessageRow) -> ApiError | None:
        """Store a message; return why it was refused, None if it was not."""
        seq, _, subject, hdr, data, _ = row
        signed = self.plan.sign(hdr, seq, subject, self._identity)
        try:
            origin = CounterOrigin(self._origin, subject)
            self.stream.copier.append_sourced(self.plan.subject_of(subject), signed, data, self._now(), origin)
        except ApiError as refusal:
            return refusal
        return None

    # --- mirrors

    def _mirror(self, rows: Sequence[MessageRow]) -> list[int]:
        stream, taken = self.stream, []
        rows = [row for row in rows if row.seq > stream.state.last]
        plain = stream.copier.keeps_rows and not self.plan.source.subject_transforms
        if plain and all(is_bare(row.hdr) and intact(row) for row in rows):
            if rows:
                stream.copier.append_rows(rows)
            return [row.seq for row in rows]
        for row in rows:
            if not self._is_sound(row):
                continue
            seq, time, subject, hdr, data, _ = row
            try:
                subject, hdr = self.plan.subject_of(subject), unconditional(hdr)
                stream.copier.append_mirrored(seq, subject, hdr, data, time, self._now())
            except ApiError as refusal:
                self._stall(seq, refusal)
                break
            taken.append(seq)
        return taken

    # --- refused messages

    def _stall(self, seq: int, refusal: ApiError) -> None:
        self.position.seq, self.position.stalled = seq - 1, True
        self._note(refusal)

    def _note(self, refusal: ApiError) -> None:
        """Report a refusal other than a lack of space."""
        if isinstance(refusal, LimitError) and not isinstance(refusal, MessageTooLargeError):
            return
        body = ErrorBody(code=refusal.code, err_code=refusal.err_code, description=refusal.description)
        self.position.problem = _encode(body).decode()

    def _is_sound(self, row: MessageRow) -> bool:
        if intact(row):
            return True
        _log.error(
            "message %d of stream %r is damaged: %r skips it",
            row.seq,
            self._origin,
            self.stream.name,
            extra={"stream": self._origin, "seq": row.seq},
        )
        return False

    def wake(self) -> None:
        """Note that there may be space again."""
        position = self.position
        if position.load() and position.stalled:
            position.stalled, position.problem = False, ""
            position.save()


class SourceLink(Intake):
    """One source of ``stream``, or its mirror: the messages of ``origin`` that ``plan`` selects.

    ``consumed``: those that a consumer delivers.
    """

    def __init__(
        self,
        database: Database,
        stream: StreamLog,
        origin: StreamLog,
        plan: Plan,
        now: Callable[[], int],
        consumed: Consumed | None = None,
    ) -> None:
        super().__init__(database, stream, plan, now, origin.name, identity_of(origin.name, origin.created))
        self.origin = origin
        self.consumed = consumed

    # --- continuing

    @property
    def is_behind(self) -> bool:
        """Whether more messages of the origin can be taken now."""
        position = self.position
        if self.consumed is not None:
            return not (position.load() and position.stalled) and self.consumed.is_ready()
        return not position.load() or (position.seq < self.origin.state.last and not position.stalled)

    def go_on(self) -> list[int]:
        """Take the next messages, a bounded number; return the sequences taken that its origin may let go."""
        self._begin()
        if self.consumed is not None:
            self._consume(self.consumed)
            return []
        position, origin, taken = self.position, self.origin, []
        start = position.seq
        for _ in range(_AT_ONCE // _CHUNK):
            if position.seq >= origin.state.last or position.stalled:
                break
            rows = origin.table.scan(position.seq + 1, origin.state.last, _CHUNK, self.plan.condition)
            reached = rows[-1].seq if len(rows) == _CHUNK else origin.state.last
            taken += self._mirror(rows) if self.mirrors else self._source(rows)
            if not position.stalled:
                position.seq = reached
        if taken:
            position.took(taken, self._now())
        if taken or position.seq != start or position.stalled:
            position.save()
        return taken

    def _consume(self, consumed: Consumed) -> None:
        """Take what a consumer delivers next, and settle there what was taken."""
        position = self.position
        for _ in range(_AT_ONCE // _CHUNK):
            rows = () if position.stalled else consumed.take(_CHUNK)
            if not rows:
                return
            # A consumer that was reset, or made again, delivers again what is here already.
            new = [row for row in rows if row.seq > position.seq]
            taken = self._mirror(new) if self.mirrors else self._source(new)
            if not position.stalled:
                position.seq = max(position.seq, rows[-1].seq)
            if taken:
                position.took(taken, self._now())
            position.save()
            left = {row.seq for row in rows if row.seq > position.seq}
            kept = left.union(position.all_parked()) if position.parked else left
            consumed.settle([row.seq for row in rows if row.seq not in kept])
            consumed.give_back(left)

    def _begin(self) -> None:
        """Find the start position, if nothing was taken of this origin yet."""
        position, source = self.position, self.plan.source
        if position.load() and (position.origin == self.origin.id or self.mirrors):
            return
        if source.opt_start_seq:
            seq = source.opt_start_seq - 1
        elif source.opt_start_time:
            seq = self.origin.reader.first_at(parse_rfc3339(source.opt_start_time)) - 1
        else:
            seq = 0
        position.begin(self.origin.id, seq)
        if self.consumed is not None:
            # As on the server, where a source resets its consumer: what others were given has not arrived here.
            self.consumed.offer_again()
        if self.mirrors:
            self.stream.copier.skip_to(seq + 1)

    def takes_next(self, subject: str) -> bool:
        """Whether the next message that the origin stores under a subject will be taken."""
        position = self.position
        return self.plan.takes(subject) and not (position.load() and position.seq > self.origin.state.last)

    def retry(self, subjects: Iterable[str] | None) -> list[int]:
        """Retry the messages parked for these subjects, None: for all; return the sequences taken."""
        position = self.position
        if not position.load() or not position.parked:
            return []
        taken: list[int] = []
        for subject in position.parked_subjects() if subjects is None else subjects:
            taken += self._retry_one(subject)
        if taken:
            position.took(taken, self._now())
            if not position.parked:
                position.problem = ""
        position.save()
        return taken

    def _retry_one(self, subject: str) -> list[int]:
        taken: list[int] = []
        while waiting := self.position.parked_of(subject, _RETRIED):
            for seq in waiting:
                row = self.origin.reader.get(seq)
                if row is not None and self._is_sound(row):
                    if self._append(row) is not None:
                        return taken
                    taken.append(seq)
                self.position.unpark(subject, seq)
        return taken

    # --- removals from the origin

    def forget(self, removed: Iterable[Removed]) -> None:
        """Note that messages were removed from the origin: they are no longer parked."""
        position = self.position
        if not position.load() or not position.parked:
            return
        for one in removed:
            if one.seq <= position.seq:
                position.unpark(self.stream.appender.stored_subject(self.plan.subject_of(one.subject)), one.seq)
        position.save()

    def forget_all(self) -> None:
        """Note that the origin was emptied."""
        if self.position.load() and self.position.parked:
            self.position.forget_parked()
            self.position.save()

    def find_untaken(self, sequences: Iterable[int], subject_of: Callable[[int], str | None]) -> set[int]:
        """Return those messages of the origin that are not taken yet."""
        position = self.position
        begun = position.load()
        parked = set(position.all_parked()) if begun and position.parked else set()
        found = set()
        for seq in sequences:
            if seq in parked:
                found.add(seq)
            elif seq > position.seq:
                subject = subject_of(seq)
                if subject is not None and self.plan.takes(subject):
                    found.add(seq)
        return found


class RemoteLink(Intake):
    """One source of ``stream``, or its mirror, whose origin is in another JetStream: it is told what there is.

    Its position's ``origin`` is when that stream was created, in nanoseconds, and ``parked`` how many messages it has
    for this one that have not arrived. What cannot be stored is not skipped: it is delivered again.
    """

    _parks = False

    def __init__(self, database: Database, stream: StreamLog, plan: Plan, now: Callable[[], int]) -> None:
        source, place = plan.source, plan.source.external and plan.source.external.api
        super().__init__(database, stream, plan, now, source.name, identity_of(source.name, place))
        # When the origin was heard of last, by this process.
        self.heard: int = 0

    def begin(self, created: int, last: int) -> int:
        """Return the last sequence that was taken of the origin, or skipped, which was ``created`` at that time.

        One that was deleted and made anew is taken from its start, and one that has lost its end (``last`` is earlier)
        from there on; a mirror waits until the origin has sequences again that it has not.
        """
        position, source, stream = self.position, self.plan.source, self.stream
        found = position.load()
        # Without a time, the position comes with the messages: the stream was restored.
        if found and (position.origin == created or (position.seq and not position.origin)):
            seq = position.seq if self.mirrors else min(position.seq, last)
            if (position.origin, position.seq) != (created, seq):
                position.origin, position.seq = created, seq
                position.save()
            return seq
        seq = max(source.opt_start_seq - 1, 0)
        if self.mirrors:
            seq = max(seq, position.seq, stream.state.last)
            if not source.opt_start_time:
                stream.copier.skip_to(seq + 1)
        position.begin(created, seq)
        return seq

    def take(self, created: int, after: int, messages: Sequence[Delivered], left: int) -> int | None:
        """Store messages that follow ``after``; return the new position, None if another process has moved it.

        It is before the last of these if there was no room. ``left`` is how many more the origin has.
        """
        position = self.position
        if not position.load() or (position.origin, position.seq) != (created, after):
            return None
        position.stalled, position.problem = False, ""
        rows = [_row_of(message) for message in messages]
        taken = self._mirror(rows) if self.mirrors else self._source(rows)
        if not position.stalled:
            position.seq = rows[-1].seq
        if taken:
            position.took(taken, self._now())
        position.parked = left + sum(row.seq > position.seq for row in rows)
        position.save()
        return position.seq

    def skip(self, seq: int) -> None:
        """Note, for a mirror, that the origin has nothing up to ``seq`` that is not here."""
        if self.mirrors and not self.plan.filters and seq > self.stream.state.last:
            self.stream.copier.skip_to(seq + 1)

    def note(self, problem: ErrorBody | None, left: int = 0) -> None:
        """Note why the origin cannot be taken from, or how many messages it has."""
        position = self.position
        told = "" if problem is None else _encode(problem).decode()
        if not position.load():
            if problem is None:
                return
            position.begin(0, 0)
        if (position.problem, position.parked) != (told, left):
            position.problem, position.parked = told, left
            position.save()


def _row_of(message: Delivered) -> MessageRow:
    seq, ts, subject, hdr, data = message.seq, message.time_ns, message.subject, message.headers, message.data
    return MessageRow(seq, ts, subject, hdr, data, row_checksum(seq, ts, subject, hdr, data))


def _is_for_all(refusal: ApiError) -> bool:
    """Whether the stream is full for messages of all subjects."""
    if refusal.err_code == _SEALED:
        return True
    return isinstance(refusal, LimitError) and not isinstance(refusal, _MAY_WAIT)
