"""A stream's small rows (counts, bounds, subjects) in memory, and the unwritten changes of the open transaction.

All durable state is in rows. A :class:`StreamState` caches the small ones and buffers the rows that the transaction has
appended; ``write_rows`` must run before anything reads message rows. After another process has written (``stale``), or
after a rollback, the cache is read again.

Design: a row that is written with each message is a second page in the log for each. So a stream's row is written at
most every ``TAIL`` messages: those after its ``last`` (the *tail*) are counted when the row is read, after a write of
another process. For that, the tail has to tell everything: since the row was written, messages were only appended,
without a gap; otherwise the row is written (``_is_told``). Whoever reads ``stream_state`` by SQL adds the tail.

Invariants, after a flush (``appender.py``): ``msgs`` and ``bytes`` equal a recount of the rows; ``first`` is the lowest
stored sequence, or ``last + 1`` if there is none; ``last`` never falls. For subjects, see ``subject_rows.py``.

**The duplicate window: message ids remembered for a time (``Nats-Msg-Id``).** Ids are stored as rows by sequence and
looked up in memory. The memory is filled from the rows on first use, and from newer rows whenever another process has
published; ids older than the window are dropped from the front. A message that is deleted or acknowledged keeps its id
in the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from pelton.api import StreamConfig
from pelton.api.config import Storage
from pelton.api.times import NEVER
from pelton.storage import TAIL, DamagedRowError, Database, MessageTable, RowValues, integer, integers, text
from pelton.streams.counters import Total
from pelton.streams.subject_rows import StreamEffects, SubjectRow, SubjectRows
from pelton.streams.timers import Timers
from pelton.subjects import Draw

# --- what a stream needs from its store, given once when it is created

IsWanted = Callable[[str], bool]
CheckQuota = Callable[[Storage, int], None]


class Sources(Protocol):
    """The sources and mirrors between the streams of a store (``sourcing``)."""

    @property
    def watched(self) -> Container[int]:
        """The row ids of streams that record removals: they source from others, or others from them."""

    def on_write(self, stream: int) -> None:
        """Copy new messages of a watched stream to those that source it, before its limits are applied."""


class PushesOfStreams(Protocol):
    """The push consumers of a store that have subscribers (``engine/session``)."""

    @property
    def streams(self) -> Container[int]:
        """The row ids of streams that have push consumers."""

    def deliver(self, stream: int) -> None:
        """Deliver what a stream holds to its push consumers, before messages that they have not received are removed.

        Call it when everything that the transaction has changed so far is written.
        """


class StreamEnv(msgspec.Struct, frozen=True):
    """``database`` holds the rows.

    ``has_recipient(subject)`` tells whether a message published now would reach a stream or a subscriber, and
    ``may_have_recipient(filter)`` quickly checks whether one that matches might. ``draw`` is the randomness of
    transforms. ``wanted`` tells whether a subject is wanted, by row id, for streams with interest retention that do not
    keep everything. ``check_quota`` refuses bytes beyond the limit of all streams together; None if there is none.
    """

    database: Database
    has_recipient: Callable[[str], bool]
    may_have_recipient: Callable[[str], bool]
    draw: Draw
    wanted: Mapping[int, IsWanted]
    check_quota: CheckQuota | None
    sources: Sources
    live: PushesOfStreams


_FORGET_EVERY: Final = 512


class _KnownId(msgspec.Struct, frozen=True, gc=False):
    """An id within the window, and the message that was stored under it."""

    seq: int
    ts: int
    msg_id: str


class DuplicateWindow:
    """The ids of one stream; ``window`` in nanoseconds."""

    def __init__(self, database: Database, stream: int, window: int) -> None:
        self._db = database
        self._stream = stream
        self.window = window
        self._loaded = 0
        self._stale = True
        self._ids: dict[str, int] = {}
        self._order: deque[_KnownId] = deque()
        self._fresh: list[tuple[int, int, int, str]] = []
        self._forgotten = 0

    def invalidate(self) -> None:
        """Mark the ids in memory as stale: other processes may have published."""
        self._stale = True

    def reset(self) -> None:
        """Forget everything after a rollback: the ids are read from the rows again."""
        self._loaded = 0
        self._stale = True
        self._forgotten = 0
        self._ids.clear()
        self._order.clear()
        self._fresh.clear()

    def find(self, msg_id: str, now: int) -> int | None:
        """Return the sequence stored under ``msg_id`` within the window, or None."""
        if self._stale:
            self._load(now)
        self._forget(now)
        return self._ids.get(msg_id)

    def last_id(self, seq: int) -> str:
        """Return the id of the message at the last sequence, even outside the window, or an empty text."""
        if self._fresh:
            _, last, _, msg_id = self._fresh[-1]
            if last == seq:
                return msg_id
        return str(self._db.value("SELECT id FROM ids WHERE stream=? AND seq=?", (self._stream, seq)) or "")

    def add(self, seq: int, now: int, msg_id: str) -> None:
        if self._stale:
            self._load(now)
        self._remember(seq, now, msg_id)
        self._fresh.append((self._stream, seq, now, msg_id))

    def flush(self) -> None:
        """Write new ids, and from time to time delete the rows of those that have left the window."""
        if self._fresh:
            self._db.executemany("INSERT INTO ids VALUES(?, ?, ?, ?)", self._fresh)
            self._fresh.clear()
        if self._forgotten and (len(self._order) < _FORGET_EVERY or self._forgotten % _FORGET_EVERY == 0):
            # The newest id stays, however old: a publisher may expect it (``Nats-Expected-Last-Msg-Id``).
            first = self._order[0].seq if self._order else self._loaded
            self._db.execute("DELETE FROM ids WHERE stream=? AND seq<?", (self._stream, first))
            self._forgotten = 0

    def _load(self, now: int) -> None:
        sql = "SELECT seq, ts, id FROM ids WHERE stream=? AND seq>? AND ts>? ORDER BY seq"
        for seq, ts, msg_id in self._db.execute(sql, (self._stream, self._loaded, now - self.window)):
            self._remember(integer(seq), integer(ts), text(msg_id))
        self._stale = False

    def _remember(self, seq: int, ts: int, msg_id: str) -> None:
        self._ids[msg_id] = seq
        self._order.append(_KnownId(seq, ts, msg_id))
        self._loaded = seq

    def _forget(self, now: int) -> None:
        limit = now - self.window
        order = self._order
        while order and order[0].ts <= limit:
            known = order.popleft()
            if self._ids.get(known.msg_id) == known.seq:
                del self._ids[known.msg_id]
            self._forgotten += 1


# The row of a stream (``storage/schema.py``).
_LOAD_STATE: Final = "SELECT dseq, n, waits, due, subject FROM pelton_deliveries WHERE consumer=0 AND seq=?"
_SAVE_STATE: Final = "UPDATE pelton_deliveries SET dseq=?, n=?, waits=?, due=?, subject=? WHERE consumer=0 AND seq=?"


class Cost(msgspec.Struct, frozen=True):
    """The overhead that a message is accounted for, in bytes: for itself, and for having headers."""

    message: int
    header: int

    def size(self, subject: int, data: int, hdr: int) -> int:
        """Return the accounted size of a message with parts of these lengths; ``hdr`` -1 for no header block."""
        return self.message + subject + data + (self.header + hdr if hdr >= 0 else 0)


# The row is written when it would be behind by so many messages.
MOST_BEHIND: Final = TAIL
# Messages of so many bytes are not counted again and again: with them, the row is a small part of what is written.
_TAIL_BYTES: Final = 1 << 16

# As NATS's two kinds of storage account for it; the real size in the file differs.
COSTS: Final = {"file": Cost(30, 4), "memory": Cost(16, 0)}


class RollUp(NamedTuple):
    """What a roll-up has left to remove: the messages of ``subject`` after one sequence and before another."""

    subject: str
    after: int
    before: int


class _Bounds(NamedTuple):
    """The JSON in the row of a stream."""

    first: int
    removals: int
    subjects_upto: int
    rolling: tuple[RollUp, ...] = ()


_decode: Final = msgspec.json.Decoder(_Bounds).decode


class _Row(NamedTuple):
    """What a stream's row in ``stream_state`` says, apart from the time of its last message."""

    msgs: int
    bytes: int
    last: int
    bounds: _Bounds


Jumps = tuple[tuple[int, int], ...]
"""How the wall clock has jumped: a sequence, and by how much it is ahead since messages up to it were stored (ns)."""


class StreamState:
    """The stream with row id ``stream``: its small state, and what is not written yet."""

    stale: bool
    dirty: bool
    resets: int
    msgs: int
    last: int
    last_ts: int
    removals: int
    first: int
    cost: Cost
    is_trimmed: bool
    is_timed: bool
    ages: bool
    is_ticking: bool

    def __init__(self, env: StreamEnv, stream: int, config: StreamConfig) -> None:
        self.env = env
        self.db: Database = env.database
        self.id = stream
        self.name: str = config.name
        self.table: MessageTable = MessageTable(env.database, stream)
        self.ids: DuplicateWindow = DuplicateWindow(env.database, stream, config.duplicate_window.ns)
        self.timers: Timers = Timers(env.database, stream)
        self.effects: StreamEffects = StreamEffects()
        self.stale = True
        self.dirty = False
        # How often something was undone: sequences that were given may be given again.
        self.resets = 0
        self.bytes: int = 0
        self.msgs = self.last = self.last_ts = self.removals = 0
        self.first = 1
        # The row of the stream, as it is now, and its values in the table; None if it is unknown.
        self._row: _Row | None = None
        self._values: tuple[Any, ...] = ()
        # Rows to write.
        self.rows: list[RowValues] = []
        self.subjects: SubjectRows = SubjectRows(env.database, stream, self.table.name, self.effects)
        # The last sequences of republished subjects, which are exact (``mappings.py``).
        self.lasts: dict[str, int] = {}
        # The totals of counters after their last message; read once per transaction (``appender.py``).
        self.totals: dict[str, Total] = {}
        self._oldest_ts: int | None = None
        self.jumps: Jumps = ()
        # What was rolled up and is not removed yet: for readers, it is due to be removed (``log.py``).
        self.rolling: tuple[RollUp, ...] = ()
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        """Apply a (changed) configuration."""
        self.config = config
        self.cost = COSTS[config.storage]
        self.ids.window = config.duplicate_window.ns
        self.lasts.clear()
        self.subjects.configure(self.last, is_limited=config.max_msgs_per_subject > 0, is_dirty=self.dirty)
        self.is_trimmed = config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        # Whether single messages have deadlines, and whether anything in the stream depends on time.
        self.is_timed = config.allow_msg_ttl or config.allow_msg_schedules
        self.ages = self.is_timed or config.max_age.ns > 0
        # Whether time produces messages that others wait for, so that some process has to watch the clock.
        self.is_ticking = config.allow_msg_schedules or config.subject_delete_marker_ttl.ns > 0

    @property
    def has_timers(self) -> bool:
        """Whether any message has a deadline, or is a schedule."""
        return self.is_timed and self.timers.has_any()

    @property
    def is_watched(self) -> bool:
        """Whether a source or mirror needs to know what is removed."""
        return self.id in self.env.sources.watched

    def is_wanted(self, subject: str) -> bool:
        """Whether a message published now is to be kept."""
        check = self.env.wanted.get(self.id)
        return check is None or check(subject)

    # --- rows

    def load(self) -> None:
        """Reload the cached rows, which another process may have changed."""
        excess = self.last - self.msgs
        upto = self._read_counts()
        # Every removal widens the difference, and nothing narrows it.
        self.subjects.load(upto, self.last, only_grew=self.last - self.msgs == excess)
        # Other processes announce their own changes.
        self.effects.known_removals = self.removals
        self.lasts.clear()
        self._oldest_ts = None
        self.ids.invalidate()
        self.timers.invalidate()
        self.stale = False

    def _read_counts(self) -> int:
        """Read the row of the stream, and count the messages after it; return up to where subjects are counted."""
        rows = self.db.run(_LOAD_STATE, (self.id,)).fetchall()
        if not rows:
            raise DamagedRowError("its state is missing")
        [row] = rows
        if self._row is None or row != self._values:
            # If it is as it was, messages were only appended since, and they are added to what is in memory.
            self._row = None
            self._row, self._values = self._taken(row), row
        upto = self._row.bounds.subjects_upto
        try:
            tail = self.table.tail(self.last)
        except DamagedRowError:
            # Other pages may be sound; the sequences of messages on this one are not given again.
            self._row, self.last = None, self.last + TAIL - 1
            return upto
        if tail is not None:
            self.last, self.last_ts = tail.last, tail.last_ts
            self.msgs += tail.messages
            self.bytes += tail.size + tail.messages * self.cost.message + tail.with_headers * self.cost.header
        return upto

    def _taken(self, row: tuple[Any, ...]) -> _Row:
        """Take over what the row of the stream says, and return it."""
        *numbers, others = row
        self.last, self.msgs, self.bytes, self.last_ts = integers(numbers)
        try:
            bounds = _decode(text(others))
        except msgspec.DecodeError as error:
            raise DamagedRowError(f"its state is damaged: {error}") from None
        self.first, self.removals, _, self.rolling = bounds
        return _Row(self.msgs, self.bytes, self.last, bounds)

    def reset(self) -> None:
        """Forget everything that was not committed."""
        self.rows.clear()
        self._row = None
        self.subjects.reset()
        self.totals.clear()
        self.effects.clear()
        self.ids.reset()
        self.timers.reset()
        self.dirty = False
        self.stale = True
        self.resets += 1

    def write_rows(self) -> None:
        """Write the appended messages."""
        if self.rows:
            self.table.insert(self.rows, packed=self.config.compression != "none")
            if self.msgs == len(self.rows):
                self.first, *_ = self.rows[0]
            self.rows.clear()

    def count_subjects(self) -> None:
        """Bring the rows of subjects up to date, before a limit is applied to some of them."""
        self.write_rows()
        if self.subjects.count(self.last):
            self.dirty = True

    def save(self) -> None:
        """Write subjects, ids, deadlines, counts and bounds: the last step of a flush.

        Counts and bounds are not written if those before, and the messages since, tell them.
        """
        self.totals.clear()
        self.subjects.write()
        self.subjects.flushed(self.last)
        self.ids.flush()
        if self.timers.fresh:
            self.timers.flush()
        if not self._is_told():
            bounds = _Bounds(self.first, self.removals, self.subjects.upto, self.rolling)
            self._row = _Row(self.msgs, self.bytes, self.last, bounds)
            # Older Peltons know three numbers.
            others = f"[{self.first},{self.removals},{self.subjects.upto}]"
            if self.rolling:
                others = msgspec.json.encode(bounds).decode()
            self._values = (self.last, self.msgs, self.bytes, self.last_ts, others)
            self.db.run(_SAVE_STATE, (*self._values, self.id))
        self.dirty = False

    def _is_told(self) -> bool:
        """Whether the stream's row and the messages after it tell its state: few, in a row, and none was removed."""
        row = self._row
        if row is None:
            return False
        tail = self.last - row.last
        return (
            self.msgs - row.msgs == tail < MOST_BEHIND
            and self.bytes - row.bytes <= _TAIL_BYTES
            and (self.first, self.removals, self.subjects.upto, self.rolling) == row.bounds
        )

    # --- subjects

    def subject_row(self, subject: str) -> SubjectRow:
        """Return the bounds and number of messages of a literal subject."""
        if self.rows and self.subjects.reads_messages(subject, self.last):
            self.write_rows()
        return self.subjects.row(subject, self.last)

    def forget_subjects(self) -> None:
        """Remove all subjects: the stream is empty."""
        self.subjects.clear(self.last)
        self.lasts.clear()
        self.totals.clear()

    # --- sizes and times

    def size_of(self, subject: str, hdr: bytes | None, data: bytes) -> int:
        """Return the accounted size of a message in bytes."""
        cost, length = self.cost, len(subject) if subject.isascii() else len(subject.encode())
        return cost.message + length + len(data) + (0 if hdr is None else cost.header + len(hdr))

    @property
    def is_gapless(self) -> bool:
        """Whether no sequence between first and last is missing."""
        return self.msgs == self.last - self.first + 1

    def awaits_trim(self, seq: int) -> bool:
        """Whether the next flush may remove a stored message because of the stream's limits."""
        config = self.config
        return 0 < config.max_msgs <= self.last - seq or 0 < config.max_bytes < self.bytes

    def next_deadline(self) -> int:
        """Return when something is next due in the stream, or an earlier time; ``NEVER`` if nothing is."""
        if self.rolling:
            return 0
        due = self.timers.nearest() if self.is_timed else NEVER
        if self.config.max_age.ns > 0 and (oldest := self.oldest_ts()) is not None:
            due = min(due, oldest + self.config.max_age.ns)
        return due

    def is_overdue(self, now: int) -> bool:
        """Whether something in the stream is, or may be, due by now."""
        return bool(self.ages or self.rolling) and self.next_deadline() <= now

    def oldest_ts(self) -> int | None:
        """Return from when the age of the oldest message counts that ``max_age`` may remove."""
        if self._oldest_ts is None and self.msgs:
            self.write_rows()
            self._oldest_ts = self._oldest_aged()
        return self._oldest_ts

    def _oldest_aged(self) -> int | None:
        if self.is_timed:
            aged = self.timers.oldest(self.table.name, self.last)
            return None if aged is None else self.counts_from(aged.seq, aged.ts)
        stored = self.table.time_of(self.first)
        return None if stored is None else self.counts_from(self.first, stored)

    def counts_from(self, seq: int, stored: int) -> int:
        """Return from when the age of a message counts that was ``stored`` before or after the clock has jumped."""
        for upto, by in self.jumps:
            if seq <= upto:
                return stored + by
        return stored

    def forget_oldest(self) -> None:
        """Forget the oldest message, which may be gone."""
        self._oldest_ts = None

    def is_schedule(self, subject: str) -> bool | None:
        """Whether a subject holds a schedule; None if it holds no message."""
        if self.subject_row(subject).msgs <= 0:
            return None
        return self.timers.schedule(subject) is not None
