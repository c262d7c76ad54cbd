"""Appending messages to a stream, and flushing at the end of a group.

Design: messages that are published together are a *group*: their headers are read, everything that their conditions
refer to is looked up in one statement, they are decided in order over what the group itself has written, and stored
together (:class:`_Group`). A message alone, one that needs more checks than those of its headers, or that may remove
others (a stream at its limits, a counter, a mapping) is looked up and stored at its turn: a statement for many lookups
costs a single one 20 us more.

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

from pelton.api import ApiError, Outgoing, PeltonError, PubAck, StreamConfig, api_error, headers
from pelton.storage import Columns, PlacedSums, intact, placed_sums, rows_with_checksums
from pelton.storage.messages import row_checksum
from pelton.streams.counters import Counted, CounterOrigin, Total, contributed, counted, digits, total_of
from pelton.streams.mappings import Mappings
from pelton.streams.publish_checks import (
    Asked,
    AtomicBatch,
    Checked,
    StorageOptions,
    asked_by,
    check_capacity,
    check_headers,
)
from pelton.streams.reader import WILD, Reader, Spots
from pelton.streams.remover import Remover
from pelton.streams.state import StreamState
from pelton.streams.timers import Firing
from pelton.subjects import LONGEST, is_filter, is_subject, is_subset, matches


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


_KNOWN_LIMIT: Final = 1_000
# A subject of fewer characters is never too long, however many bytes each has.
_SURELY_FITS: Final = LONGEST // 4
_subject_of: Final = attrgetter("subject")
_data_of: Final = attrgetter("data")
_headers_of: Final = attrgetter("headers")


class _Group:
    """Messages that are decided one after another, and stored together.

    ``places`` tells where the subjects are that a filter matches: those that end in a token at one of the spots. Of
    these, and of those that the group has written, ``lasts`` are the last sequences; their last ``tokens`` tell quickly
    that there is none.
    """

    __slots__ = ("firings", "has_conditions", "last", "lasts", "messages", "now", "places", "tokens")

    def __init__(self, last: int, now: int) -> None:
        self.last = last
        self.now = now
        self.places: dict[str, tuple[Spots, str]] = {}
        self.lasts: dict[str, int] = {}
        self.tokens: set[str] = set()
        self.has_conditions = False
        self.clear()

    def clear(self) -> None:
        """Begin anew: what there was is stored."""
        self.messages: list[tuple[str, bytes | None, bytes]] = []
        self.firings: dict[str, Firing] = {}

    def add(self, subject: str, block: bytes | None, data: bytes) -> int:
        """Add a message; return its sequence."""
        self.messages.append((subject, block, data))
        self.last += 1
        self.lasts[subject] = self.last
        if self.has_conditions:
            self.tokens.add(subject[subject.rfind(".") + 1 :])
        return self.last


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
        self._group: _Group | None = None
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
        # Whether all subjects with one token more than one of these belong into the stream.
        self._takes_below: dict[str, bool] = {}
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
    def takes_groups(self) -> bool:
        """Whether messages need no other checks than those of their headers, and can be stored together."""
        state, env = self.state, self.state.env
        unchecked = self._plain and env.check_quota is None and state.id not in env.wanted and self.batch is None
        return unchecked and self.mappings is None and not state.is_trimmed and state.subjects.has_all_adds_uncounted

    # --- append

    def append(self, message: Outgoing, now: int) -> PubAck:
        """Store one message at its turn, or raise ApiError before anything has changed."""
        return self._append(message, asked_by(message.headers), now)

    def append_all(
        self, messages: Sequence[Outgoing], now: int, *, until_refused: bool = False
    ) -> list[PubAck | PeltonError]:
        """Store messages in order, each answered by itself; ``until_refused``: none after the first refused one."""
        asked = [asked_by(message.headers) for message in messages]
        answers = list[PubAck | PeltonError]()
        self._group = self._group_of(messages, asked, now) if len(messages) > 1 and self.takes_groups else None
        try:
            for message, ask in zip(messages, asked, strict=True):
                try:
                    answers.append(self._append(message, ask, now))
                except PeltonError as error:
                    if isinstance(error, ApiError):
                        error.locate(stream=self.state.name)
                    answers.append(error)
                    if until_refused:
                        break
            self._store_group()
        finally:
            self._group = None
        return answers

    def _group_of(self, messages: Sequence[Outgoing], asked: Sequence[Asked | None], now: int) -> _Group:
        """Look up what the conditions of messages refer to, and what those may replace that ask for it."""
        group, wanted = _Group(self.state.last, now), dict[Spots, list[str]]()
        places, known = group.places, dict[str, Spots | None]()
        for message, ask in zip(messages, asked, strict=True):
            if ask is None:
                continue
            filters = []
            if ask.expected is not None:
                filters.append(ask.where or message.subject)
                group.has_conditions = True
            if ask.schedule or (ask.rest is not None and headers.ROLLUP in ask.rest):
                filters.append(message.subject)
            for each in filters:
                parent, _, token = each.rpartition(".")
                if token in WILD or each in places:
                    continue
                if parent not in known:
                    known[parent] = self.reader.spots_of(parent)
                if (spots := known[parent]) is not None:
                    places[each] = (spots, token)
                    wanted.setdefault(spots, []).append(token)
        group.lasts = self.reader.lasts_of(wanted)
        group.tokens = {subject[subject.rfind(".") + 1 :] for subject in group.lasts}
        return group

    def _append(self, message: Outgoing, asked: Asked | None, now: int) -> PubAck:
        """Check a message, which asks for this, and store it.

        Order of the checks: sealed, size, headers (``publish_checks``), increment, limits.
        """
        state, group = self.state, self._group
        subject, hdr, data = message.subject, message.headers, message.data
        if group is None:
            self.check_publish(message)
            subject = self.stored_subject(subject)
        if asked is None or hdr is None:
            checked = Checked(hdr)
        else:
            checked = check_headers(self, subject, hdr, asked, data, now)
            if checked.duplicate is not None:
                return PubAck(state.name, checked.duplicate, True)
        if group is None:
            seq, value = self._store_alone(subject, data, checked, now)
        else:
            options, value = checked.options, ""
            is_first = options is not None and subject in group.places and subject not in group.lasts
            seq = group.add(subject, checked.hdr, data)
            if options is not None:
                self._apply_in_group(group, seq, subject, options, is_first)
        if asked is not None and asked.msg_id:
            state.ids.add(seq, now, asked.msg_id)
            state.dirty = True
        return PubAck(state.name, seq, val=value)

    def _store_alone(self, subject: str, data: bytes, checked: Checked, now: int) -> tuple[int, str]:
        """Store a message at once, if it is counted in and has room; return its sequence and a counter's value."""
        state, hdr, options, value = self.state, checked.hdr, checked.options, ""
        self.check_quota(subject, hdr, data)
        if self.counting is not None:
            # The last check that can refuse: a counter stream is never full.
            hdr, data, total = self.counting.add(subject, hdr, checked.increment)
            value = digits(total.value)
        wanted = state.is_wanted(subject)
        if self.is_bounded and wanted:
            size = state.size_of(subject, hdr, data)
            check_capacity(self, subject, size, replaces=bool(options and options.rollup))
        seq = self.store(subject, hdr, data, now) if wanted else self.skip_one(now)
        if wanted and (options is not None or state.config.allow_msg_schedules):
            self.apply(seq, subject, options)
        if self.batch is not None:
            self.batch.written.add(subject)
        return seq, value

    def _apply_in_group(self, group: _Group, seq: int, subject: str, options: StorageOptions, is_first: bool) -> None:
        """Apply the options of a message; one that only replaces nothing waits to be stored with the others."""
        if options.ends or (options.rollup and (not is_first or options.rollup == "all")):
            self._store_group()
            if options.ends or options.rollup == "all":
                # What was looked up may be gone.
                group.places.clear()
            self.apply(seq, subject, options)
            return
        if options.expires is not None:
            self.state.timers.add(seq, options.expires)
        if options.fires is not None:
            group.firings[subject] = Firing(seq, subject, options.fires)

    def _store_group(self) -> None:
        """Store the messages of the group that wait for that."""
        group, state = self._group, self.state
        if group is None or not group.messages:
            return
        subjects, blocks, payloads = zip(*group.messages, strict=True)
        self.store_all(subjects, blocks, payloads, group.now)
        if state.config.allow_msg_schedules:
            firings = [each for each in group.firings.values() if group.lasts[each.subject] == each.seq]
            if firings:
                state.timers.put_all(firings)
            # Any other message on the subject of a schedule replaces it.
            state.timers.stop_all(list({*subjects}.difference(each.subject for each in firings)))
        group.clear()

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
            subject = message.subject if self.mappings is None else self.mappings.renamed(message.subject)
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

    def takes(self, subject: str) -> bool:
        """Whether messages of a subject belong into this stream."""
        subjects, (parent, _, token) = self.state.config.subjects, subject.rpartition(".")
        if parent not in self._takes_below:
            if len(self._takes_below) > _KNOWN_LIMIT:
                self._takes_below.clear()
            self._takes_below[parent] = is_subject(parent) and any(is_subset(f"{parent}.*", mine) for mine in subjects)
        is_below = self._takes_below[parent]
        if is_below and token.isalnum() and len(subject) < _SURELY_FITS:
            return True
        return is_subject(subject) and (is_below or any(matches(mine, subject) for mine in subjects))

    def stored_subject(self, subject: str) -> str:
        """Return the subject under which a message of ``subject`` is stored."""
        return subject if self.mappings is None else self.mappings.renamed(subject)

    @property
    def last(self) -> int:
        """The last sequence of the stream, with what the group is about to store."""
        return self.state.last if self._group is None else self._group.last

    def last_seq_of(self, subject_filter: str) -> int:
        """Return the sequence of the last message that matches, 0 if there is none."""
        if (group := self._group) is not None:
            place = group.places.get(subject_filter)
            if place is not None:
                lasts, (spots, token) = group.lasts, place
                return max([lasts.get(spot + token, 0) for spot in spots]) if token in group.tokens else 0
            self._store_group()
        if not is_filter(subject_filter):
            return 0
        if self.state.is_trimmed:
            # Limits may have removed the subject's last message.
            self.flush()
        return self.reader.last_seq_of(subject_filter)

    def last_id(self) -> str:
        """Return the message id of the last message, or an empty text."""
        return self.state.ids.last_id(self.last)

    def is_schedule(self, subject: str) -> bool | None:
        """Whether a subject holds a schedule; None if it holds no message."""
        self._store_group()
        return self.state.is_schedule(subject)

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
        state.subjects.add_one(subject, seq)
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
        self._remover.roll_up(subject, seq, everything=kind == "all")

    # --- flush and limits

    def flush(self) -> None:
        """Write the buffered changes of the transaction, and apply the limits."""
        state = self.state
        if not state.dirty:
            return
        written = len(state.rows)
        state.write_rows()
        grown = state.subjects.grown() if state.is_trimmed and state.config.max_msgs_per_subject > 0 else ()
        if state.is_watched and self.batch is None:
            # Sources and mirrors copy messages before the limits remove any.
            state.env.sources.on_write(state.id)
        if state.is_trimmed:
            self._deliver_live()
            self._remover.trim(grown, written)
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
        for _ in self._remover.shrink(self.state.config, 0, self.state.last):
            pass
        self.state.dirty = True
