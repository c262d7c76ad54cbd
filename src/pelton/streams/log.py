"""One stream's messages inside a transaction: append, flush. What goes: ``shrinking.py``, reading: ``stored.py``.

The story. All state that matters is in rows; a :class:`StreamLog` keeps a copy of the small ones (counts,
bounds) and buffers of what the open transaction has appended. ``flush`` writes the buffers, once for a whole
group of publishes; anything that reads message rows flushes first. When another process has written
(``stale``), or a transaction was rolled back, the copy is read again from the rows.

Invariants, after ``flush``: ``state.msgs`` and ``state.bytes`` equal a recount of the rows; ``first`` is the
lowest stored sequence, or ``last + 1`` when there is none; ``last`` never falls. In ``subjects``, ``msgs``
equals a recount, and no message of the subject lies outside ``first..last``.

Limits with discard old are applied when the group is flushed, which no reader can tell from once a message: a
transaction's middle is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pelton.api import Outgoing, PubAck, StreamConfig, api_error, headers
from pelton.storage.checksum import row_checksum
from pelton.streams.counters import digits
from pelton.streams.counting import Counting
from pelton.streams.expect import Batch
from pelton.streams.judging import Judged, judged
from pelton.streams.mappings import mappings_of
from pelton.streams.room import check_room
from pelton.streams.shrinking import ShrinkingLog
from pelton.streams.ticking import pass_time
from pelton.streams.timers import Firing
from pelton.streams.wishes import Wish

_NOTHING: Final = Judged()

_SAVE_STATE: Final = "UPDATE stream_state SET msgs=?, bytes=?, first=?, last=?, last_ts=?, removals=? WHERE id=?"


class StreamLog(ShrinkingLog):
    """The messages of the stream with row id ``stream`` and configuration ``config``."""

    # Set while a batch is stored as one.
    batch: Batch | None = None

    def configure(self, config: StreamConfig) -> None:
        """Take a (changed) configuration; limits apply from the next flush on."""
        super().configure(config)
        limited = config.max_msgs > 0 or config.max_bytes > 0
        self._checked = self._discards_new and (limited or (self._per_subject and config.discard_new_per_subject))
        self._mappings = mappings_of(self, config)
        self._counting = Counting(self) if config.allow_msg_counter else None
        said = self.is_trimmed and self._mappings is not None and self._mappings.is_said
        checked = self._checked or config.max_msg_size >= 0 or config.allow_msg_counter
        # What is said again tells which message was the last: limits have to be applied in between.
        # As `_store` says.
        early = self._per_subject and config.max_bytes > 0
        self._plain = not (checked or config.allow_msg_schedules or config.sealed or said or early)

    def reset(self) -> None:
        """Forget everything that was not committed."""
        super().reset()
        self._forget_totals()

    def _forget_totals(self) -> None:
        if self._counting is not None:
            self._counting.forget()

    # --- append

    def append(self, subject: str, hdr: bytes | None, data: bytes, now: int) -> PubAck:
        """Store one message, or raise ApiError before anything has changed.

        Order of the checks: sealed, size, what its headers ask for (``judging.py``), increment, limits.
        """
        if self.config.sealed:
            raise api_error("JSStreamSealedErr")
        subject = self.stored_subject(subject)
        self._check_size(hdr, data)
        asked = _NOTHING if hdr is None else judged(self, subject, hdr, data, now)
        if asked.duplicate is not None:
            return PubAck(self.name, asked.duplicate, True)
        hdr, wish, value = asked.hdr, asked.wish, ""
        if self.quota is not None:
            self.quota(self.config.storage, self.size_of(subject, hdr, data))
        if self._counting is not None:
            # The last refusal there is: a stream that counts always has room.
            hdr, data, total = self._counting.add(subject, hdr, asked.increment)
            value = digits(total.value)
        unwanted = self.is_wanted is not None and not self.is_wanted(subject)
        if self._checked and not unwanted:
            check_room(self, subject, self.size_of(subject, hdr, data), replaces=bool(wish and wish.rollup))
        seq = self._pass(now) if unwanted else self._store(subject, hdr, data, now)
        if asked.msg_id:
            self.ids.add(seq, now, asked.msg_id)
            self.dirty = True
        if not unwanted and (wish is not None or self.config.allow_msg_schedules):
            self._fulfil(seq, subject, wish)
        if self.batch is not None:
            self.batch.written.add(subject)
        return PubAck(self.name, seq, val=value)

    def check_publish(self, message: Outgoing) -> None:
        """Raise what a message is refused with whatever becomes of its batch: the stream is sealed, it is too large."""
        if self.config.sealed:
            raise api_error("JSStreamSealedErr")
        self._check_size(message[2], message[1])

    def stored_subject(self, subject: str) -> str:
        """Return the subject under which a message of ``subject`` is stored."""
        return subject if self._mappings is None else self._mappings.renamed(subject)

    def _check_size(self, hdr: bytes | None, data: bytes) -> None:
        if 0 <= self.config.max_msg_size < len(data) + (len(hdr) if hdr is not None else 0):
            raise api_error("JSStreamMessageExceedsMaximumErr")

    def append_plain(self, messages: Iterable[Outgoing], now: int) -> list[PubAck]:
        """Store messages that are bare (`is_bare`); the caller has seen that :attr:`is_plain` holds."""
        if self._mappings is not None:
            messages = self._mappings.prepared(messages, now)
        seq, size = self.last, 0
        rows, deltas, known, name = self._rows, self._deltas, self._known, self.name
        acks: list[PubAck] = []
        for subject, data, hdr in messages:
            seq += 1
            rows.append((seq, now, subject, hdr, data, row_checksum(seq, now, subject, hdr, data)))
            size += len(data) + (len(subject) if subject.isascii() else len(subject.encode()))
            if hdr is not None:
                size += len(hdr) + self.cost.header
            delta = deltas.get(subject)
            if delta is None:
                deltas[subject] = [seq, seq, 1]
            else:
                delta[1] = seq
                delta[2] += 1
            acks.append(PubAck(name, seq))
            if known and (row := known.get(subject)) is not None:
                if row[2] == 0:
                    row[0] = seq
                row[1] = seq
                row[2] += 1
        added = len(acks)
        self.msgs += added
        self.bytes += size + added * self.cost.message
        self.last = seq
        self.last_ts = now
        self.dirty = True
        return acks

    @property
    def counts(self) -> bool:
        """Whether its subjects are counters."""
        return self._counting is not None

    @property
    def is_plain(self) -> bool:
        """Whether a message that asks for nothing is stored without any check or limit per message."""
        return self._plain and self.is_wanted is None and self.quota is None

    @property
    def takes_bulk(self) -> bool:
        """Whether messages without headers can be stored as they are, many at once."""
        return self.is_plain and self._mappings is None and not (self._per_subject or self.config.compression != "none")

    def _pass(self, now: int) -> int:
        """Give a sequence to a message that nobody wants, and keep nothing of it."""
        self.last += 1
        self.last_ts, self.dirty = now, True
        if self.msgs == 0:
            self.first = self.last + 1
        return self.last

    def _roll_up(self, subject: str, seq: int, kind: str) -> None:
        """Remove what the message ``seq`` replaces; the limits have been applied to it before, as to any."""
        if self.is_trimmed:
            self.flush()
        self.rolled.add("" if kind == "all" else subject)
        if kind == "all":
            self.purge("", seq, 0)
        else:
            self._write_rows()
            self._trim_subject(subject, 1)

    def _store(self, subject: str, hdr: bytes | None, data: bytes, now: int) -> int:
        seq = self.last + 1
        if self._mappings is not None:
            self._mappings.say(((subject, data, hdr),), now)
        self._rows.append((seq, now, subject, hdr, data, row_checksum(seq, now, subject, hdr, data)))
        self.msgs += 1
        self.bytes += self.size_of(subject, hdr, data)
        self.last, self.last_ts, self.dirty = seq, now, True
        self._count_subject(subject, seq)
        if self._per_subject and 0 < self.config.max_bytes < self.bytes:
            # A large message that a later one of the group replaces may push others out: not to be put off.
            self.flush()
        return seq

    def append_own(self, subject: str, hdr: bytes, data: bytes, now: int, expires: int | None) -> None:
        """Store a message of the stream's own (``ticking.py``), which meets no conditions, and may replace others."""
        if self.is_wanted is not None and not self.is_wanted(subject):
            self._pass(now)
            return
        seq = self._store(subject, hdr, data, now)
        self._fulfil(seq, subject, Wish(hdr, expires, rollup=(headers.first(hdr, headers.ROLLUP) or "")))

    def _fulfil(self, seq: int, subject: str, wish: Wish | None) -> None:
        """Do what a stored message asked for; whatever is stored on a subject takes the place of its schedule."""
        if self.config.allow_msg_schedules:
            if wish is not None and wish.ends:
                self.remove_subject(wish.ends)
            if wish is not None and wish.fires is not None:
                self.timers.put(Firing(seq, subject, wish.fires))
            else:
                self.timers.stop(subject)
        if wish is not None and wish.expires is not None:
            self.timers.add(seq, wish.expires)
        if wish is not None and wish.rollup:
            self._roll_up(subject, seq, wish.rollup)

    def last_seq_of(self, subject_filter: str) -> int:
        """Return the sequence of the last message that matches, 0 if there is none."""
        if self.is_trimmed:
            # Limits may have removed what was the last of the subject.
            self.flush()
        return super().last_seq_of(subject_filter)

    # --- flush and limits

    def awaits_trim(self, seq: int) -> bool:
        """Whether a stored message may be one of those that the next flush removes for the stream's limits."""
        config = self.config
        return 0 < config.max_msgs <= self.last - seq or 0 < config.max_bytes < self.bytes

    def flush(self) -> None:
        """Write what the transaction holds in memory, and apply the limits."""
        if not self.dirty:
            return
        self._write_rows()
        if self.on_stored is not None and self.batch is None:
            # Those who take from this stream come before its limits.
            self.on_stored()
        if self.is_trimmed:
            self._trim()
        self._write_subjects()
        self.ids.flush()
        self.timers.flush()
        self._forget_totals()
        state = (self.msgs, self.bytes, self.first, self.last, self.last_ts, self.removals, self.id)
        self._db.execute(_SAVE_STATE, state)
        self.dirty = False

    def advance(self, now: int) -> None:
        """Let all happen that is due (``ticking.py``): nothing may read or write a stream before it has."""
        if self.is_overdue(now):
            pass_time(self, now)

    def apply_limits(self) -> None:
        """Apply all limits to all messages: the configuration has changed."""
        self.flush()
        limit = self.config.max_msgs_per_subject
        if limit > 0:
            sql = "SELECT subject FROM subjects WHERE stream=? AND msgs>?"
            for (subject,) in self._db.execute(sql, (self.id, limit)).fetchall():
                self._trim_subject(str(subject), limit)
        if self.is_trimmed:
            self._trim()
        self.dirty = True
