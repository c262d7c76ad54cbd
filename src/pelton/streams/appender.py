"""Appending messages to a stream, and flushing at the end of a group.

``flush`` writes a whole group of publishes at once, and applies the limits. With discard old, readers cannot tell this
from applying the limits message by message: the middle of a transaction is never visible.

**The totals of one stream's counters inside a transaction; the arithmetic is in ``counters.py``.** A total is that of
the subject's last message. It is read once per transaction and cached (``StreamState.totals``) until anything is
removed or flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import attrgetter
from typing import Final

import msgspec

from pelton.api import Outgoing, PubAck, StreamConfig, api_error, headers
from pelton.storage import Columns, PlacedSums, intact, placed_sums, rows_with_checksums
from pelton.storage.rows import row_checksum
from pelton.streams.counters import Counted, CounterOrigin, Total, contributed, counted, digits, total_of
from pelton.streams.mappings import Mappings
from pelton.streams.publish_checks import AtomicBatch, Checked, StorageOptions, check_capacity, check_headers
from pelton.streams.reader import Reader
from pelton.streams.remover import Remover
from pelton.streams.state import StreamState
from pelton.streams.timers import Firing


class Counting:
    """The counters of a stream; ``flush`` applies its limits to what was appended."""

    def __init__(self, state: StreamState, reader: Reader, flush: Callable[[], None]) -> None:
        self._state = state
        self._reader = reader
        self._flush = flush

    def add(self, subject: str, hdr: bytes | None, increment: str) -> Counted:
        """Return the message to store for an increment, and keep its total; raises ApiError 10169, 10171, 10172."""
        return self._count_on(subject, counted(self._total(subject), hdr, increment))

    def add_sourced(self, subject: str, hdr: bytes, data: bytes, origin: CounterOrigin) -> Counted:
        """Return the message to store for a message of another counter, and keep its total; raises as `add`."""
        return self._count_on(subject, contributed(self._total(subject), hdr, data, origin))

    def _count_on(self, subject: str, after: Counted) -> Counted:
        if 0 <= self._state.config.max_msg_size < len(after.headers) + len(after.data):
            raise api_error("JSStreamMessageExceedsMaximumErr")
        self._state.totals[subject] = after.total
        return after

    def _total(self, subject: str) -> Total:
        config = self._state.config
        if config.max_msgs > 0 or config.max_bytes > 0:
            # These limits may remove a subject's last message, and its total with it.
            self._flush()
        return self._state.totals.get(subject) or self._last(subject)

    def _last(self, subject: str) -> Total:
        row = self._reader.last_row_of(subject)
        if row is None:
            return Total()
        if not intact(row):
            raise api_error("JSMessageCounterBrokenErr")
        return total_of(row.hdr, row.data)


_NOTHING: Final = Checked()
_subject_of: Final = attrgetter("subject")
_data_of: Final = attrgetter("data")
_headers_of: Final = attrgetter("headers")


class Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages without headers, without a Python object for each. ``size`` is the bytes of subjects and payloads.

    ``firsts``, ``lasts`` and ``counts`` are the first index, the last index and the count of each distinct subject.
    """

    columns: Columns
    size: int
    subjects: list[str]
    firsts: list[int]
    lasts: list[int]
    counts: list[int]

    def messages(self) -> list[Outgoing]:
        """Return the messages as objects."""
        return [Outgoing(subject, data) for subject, data in self.columns.rows()]


class Appender:
    """Stores messages in one stream; it is the target that publishes are checked against."""

    mappings: Mappings | None
    counting: Counting | None
    is_bounded: bool

    def __init__(self, state: StreamState, reader: Reader, remover: Remover) -> None:
        self.state = state
        self.reader = reader
        self._remover = remover
        # The atomic batch that is being stored, if any.
        self.batch: AtomicBatch | None = None
        self.configure(state.config)

    def configure(self, config: StreamConfig) -> None:
        """Apply a (changed) configuration; its limits take effect with the next flush."""
        mappings = Mappings(self.state, self.reader, self.flush)
        self.mappings = None if mappings.is_empty else mappings
        self.counting = Counting(self.state, self.reader, self.flush) if config.allow_msg_counter else None
        per_subject = config.max_msgs_per_subject > 0
        limited = config.max_msgs > 0 or config.max_bytes > 0 or (per_subject and config.discard_new_per_subject)
        # Whether a message may be refused because the stream is full.
        self.is_bounded = config.discard == "new" and limited
        checked = self.is_bounded or config.max_msg_size >= 0 or config.allow_msg_counter
        # A republished message carries its subject's previous sequence: limits have to be applied in between.
        early = self.state.is_trimmed and mappings.republishes
        # A large message that a later one of the group replaces may evict others: this cannot wait either.
        self._trims_early = per_subject and config.max_bytes > 0
        self._plain = not (checked or config.sealed or early or self._trims_early)

    @property
    def counts(self) -> bool:
        """Whether its subjects are counters."""
        return self.counting is not None

    @property
    def is_plain(self) -> bool:
        """Whether a bare message is stored without any check or limit per message."""
        env = self.state.env
        if not self._plain or env.check_quota is not None or self.state.id in env.wanted:
            return False
        # Any message on the subject of a schedule replaces it.
        return not (self.state.config.allow_msg_schedules and self.state.has_timers)

    @property
    def takes_packed(self) -> bool:
        """Whether packed messages can be stored unchanged."""
        config = self.state.config
        per_row = config.max_msgs_per_subject > 0 or config.compression != "none"
        return self.is_plain and self.mappings is None and not per_row

    @property
    def takes_checked_bulk(self) -> bool:
        """Whether messages need no other checks than those of their headers, and can be stored in bulk."""
        state, env = self.state, self.state.env
        unchecked = self._plain and env.check_quota is None and state.id not in env.wanted and self.batch is None
        return unchecked and self.mappings is None and not state.is_trimmed and state.subjects.has_all_adds_uncounted

    # --- append

    def append(self, subject: str, hdr: bytes | None, data: bytes, now: int) -> PubAck:
        """Store one message, or raise ApiError before anything has changed.

        Order of the checks: sealed, size, headers (``publish_checks``), increment, limits.
        """
        state = self.state
        if state.config.sealed:
            raise api_error("JSStreamSealedErr")
        subject = self.stored_subject(subject)
        self.check_size(hdr, data)
        asked = _NOTHING if hdr is None else check_headers(self, subject, hdr, data, now)
        if asked.duplicate is not None:
            return PubAck(state.name, asked.duplicate, True)
        hdr, options, value = asked.hdr, asked.options, ""
        self.check_quota(subject, hdr, data)
        if self.counting is not None:
            # The last check that can refuse: a counter stream is never full.
            hdr, data, total = self.counting.add(subject, hdr, asked.increment)
            value = digits(total.value)
        wanted = state.is_wanted(subject)
        if self.is_bounded and wanted:
            size = state.size_of(subject, hdr, data)
            check_capacity(self, subject, size, replaces=bool(options and options.rollup))
        seq = self.store(subject, hdr, data, now) if wanted else self.skip_one(now)
        if asked.msg_id:
            state.ids.add(seq, now, asked.msg_id)
            state.dirty = True
        if wanted and (options is not None or state.config.allow_msg_schedules):
            self.apply(seq, subject, options)
        if self.batch is not None:
            self.batch.written.add(subject)
        return PubAck(state.name, seq, val=value)

    @contextmanager
    def in_batch(self, batch: AtomicBatch) -> Iterator[None]:
        """Treat messages appended in the block as one atomic batch."""
        self.batch = batch
        try:
            yield
        finally:
            self.batch = None

    def append_plain(self, messages: Sequence[Outgoing], now: int) -> list[PubAck]:
        """Store bare messages (`is_bare`); the caller has checked :attr:`is_plain`."""
        if len(messages) == 1:
            [message] = messages
            subject = self.stored_subject(message.subject)
            return [PubAck(self.state.name, self.store(subject, message.headers, message.data, now))]
        if not messages:
            return []
        if self.mappings is not None:
            messages = self.mappings.prepared(messages, now)
        subjects, payloads = list(map(_subject_of, messages)), list(map(_data_of, messages))
        first = self.store_all(subjects, list(map(_headers_of, messages)), payloads, now)
        return list(map(PubAck, repeat(self.state.name), range(first, first + len(subjects))))

    def store_all(
        self, subjects: Sequence[str], blocks: Sequence[bytes | None], payloads: Sequence[bytes], now: int
    ) -> int:
        """Store messages that were checked; return the sequence of the first."""
        state = self.state
        first, added = state.last + 1, len(subjects)
        state.rows += rows_with_checksums(first, now, subjects, blocks, payloads)
        lengths = map(len, subjects if all(map(str.isascii, subjects)) else map(str.encode, subjects))
        size = sum(map(len, payloads)) + sum(lengths) + added * state.cost.message
        size += sum(state.cost.header + len(block) for block in blocks if block is not None)
        state.subjects.add_all(subjects, first)
        state.msgs += added
        state.bytes += size
        state.last, state.last_ts, state.dirty = state.last + added, now, True
        return first

    def append_packed(self, packed: Packed, now: int, sums: PlacedSums = placed_sums) -> None:
        """Store packed messages; the caller has checked :attr:`takes_packed`."""
        state, added = self.state, packed.columns.count
        state.write_rows()
        first = state.last + 1
        state.table.insert_packed(first, now, packed.columns, sums)
        spans = zip(packed.subjects, packed.firsts, packed.lasts, packed.counts, strict=True)
        placed = ((subject, first + begins, first + ends, number) for subject, begins, ends, number in spans)
        state.subjects.add_spans(placed)
        if not state.msgs:
            state.first = first
        state.msgs += added
        state.bytes += packed.size + added * state.cost.message
        state.last, state.last_ts, state.dirty = state.last + added, now, True

    def append_own(self, subject: str, hdr: bytes, data: bytes, now: int, expires: int | None) -> None:
        """Store a message that the stream itself makes (``log.py``): without conditions; it may replace others."""
        if not self.state.is_wanted(subject):
            self.skip_one(now)
            return
        seq = self.store(subject, hdr, data, now)
        self.apply(seq, subject, StorageOptions(hdr, expires, rollup=(headers.first_value(hdr, headers.ROLLUP) or "")))

    # --- checks

    def check_publish(self, message: Outgoing) -> None:
        """Raise the errors that apply whatever happens to its batch: the stream is sealed, the message too large."""
        if self.state.config.sealed:
            raise api_error("JSStreamSealedErr")
        self.check_size(message.headers, message.data)

    def check_size(self, hdr: bytes | None, data: bytes) -> None:
        """Raise if a message is larger than the stream allows (10054)."""
        if 0 <= self.state.config.max_msg_size < len(data) + (len(hdr) if hdr is not None else 0):
            raise api_error("JSStreamMessageExceedsMaximumErr")

    def check_quota(self, subject: str, hdr: bytes | None, data: bytes) -> None:
        """Raise if a message would exceed the storage limit of all streams together."""
        state = self.state
        if state.env.check_quota is not None:
            state.env.check_quota(state.config.storage, state.size_of(subject, hdr, data))

    def stored_subject(self, subject: str) -> str:
        """Return the subject under which a message of ``subject`` is stored."""
        return subject if self.mappings is None else self.mappings.renamed(subject)

    def last_seq_of(self, subject_filter: str) -> int:
        """Return the sequence of the last message that matches, 0 if there is none."""
        if self.state.is_trimmed:
            # Limits may have removed the subject's last message.
            self.flush()
        return self.reader.last_seq_of(subject_filter)

    # --- storing

    def store(self, subject: str, hdr: bytes | None, data: bytes, now: int) -> int:
        """Store a message that was checked; return its sequence."""
        state = self.state
        seq = state.last + 1
        if self.mappings is not None:
            self.mappings.republish((Outgoing(subject, data, hdr),), now)
        state.rows.append((seq, now, subject, hdr, data, row_checksum(seq, now, subject, hdr, data)))
        state.msgs += 1
        state.bytes += state.size_of(subject, hdr, data)
        state.last, state.last_ts, state.dirty = seq, now, True
        state.subjects.add(subject, seq)
        if self._trims_early and state.bytes > state.config.max_bytes:
            self.flush()
        return seq

    def skip_one(self, now: int) -> int:
        """Use up a sequence for a message that no consumer wants, without storing it."""
        state = self.state
        state.last += 1
        state.last_ts, state.dirty = now, True
        if state.msgs == 0:
            state.first = state.last + 1
        return state.last

    def apply(self, seq: int, subject: str, options: StorageOptions | None) -> None:
        """Apply the options of a stored message; any message stored on a subject replaces its schedule."""
        timers = self.state.timers
        if self.state.config.allow_msg_schedules:
            if options is not None and options.ends:
                self._remover.remove_subject(options.ends)
            if options is not None and options.fires is not None:
                timers.put(Firing(seq, subject, options.fires))
            else:
                timers.stop(subject)
        if options is not None and options.expires is not None:
            timers.add(seq, options.expires)
        if options is not None and options.rollup:
            self._roll_up(subject, seq, options.rollup)

    def _roll_up(self, subject: str, seq: int, kind: str) -> None:
        """Remove the messages that ``seq`` replaces, after applying the limits to it as to any message."""
        state = self.state
        if state.is_trimmed:
            self.flush()
        else:
            state.write_rows()
            self._deliver_live()
        state.effects.rolled_up.add("" if kind == "all" else subject)
        if kind == "all":
            self._remover.purge("", seq, 0)
        else:
            self._remover.trim_subject(subject, 1)

    # --- flush and limits

    def flush(self) -> None:
        """Write the buffered changes of the transaction, and apply the limits."""
        state = self.state
        if not state.dirty:
            return
        state.write_rows()
        grown = state.subjects.grown() if state.is_trimmed and state.config.max_msgs_per_subject > 0 else ()
        if state.is_watched and self.batch is None:
            # Sources and mirrors copy messages before the limits remove any.
            state.env.sources.written(state.id)
        if state.is_trimmed:
            self._deliver_live()
            self._remover.trim(grown)
        if state.dirty:
            state.save()

    def _deliver_live(self) -> None:
        """Deliver to push consumers what they would not receive any more if it was removed now."""
        state = self.state
        if state.id in state.env.live.streams and self.batch is None:
            state.save()
            state.env.live.deliver(state.id)

    def apply_limits(self) -> None:
        """Apply all limits to all messages, after a change of the configuration."""
        self.flush()
        self._remover.trim_all_subjects()
        if self.state.is_trimmed:
            self._remover.trim(())
        self.state.dirty = True
