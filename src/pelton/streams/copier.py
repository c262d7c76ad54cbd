"""Copying messages into a stream from another one: sources and mirrors (ADR-59).

A copy has been accepted once already. So its headers are no conditions any more, and those that its new stream does
not allow (roll-up, TTL) are stored but have no effect. It is refused only if the stream has no room for it. A sourced
message is a new message of this stream; a mirrored one keeps its sequence and its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pelton.api import ApiError, StoredMessage, api_error, headers
from pelton.storage import MessageRow
from pelton.streams.appender import Appender
from pelton.streams.counters import CounterOrigin
from pelton.streams.publish_checks import (
    StorageOptions,
    asked_by,
    check_capacity,
    expiry,
    fields_of,
    rollup_of,
    scheduled,
    seconds_of,
)


class Copier:
    """Stores copies in one stream."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._state = appender.state

    def append_sourced(self, subject: str, hdr: bytes, data: bytes, now: int, origin: CounterOrigin) -> None:
        """Store a message that comes from ``origin`` (stream and subject), or drop it as a duplicate.

        Raises ApiError before anything has changed.
        """
        appender, state = self._appender, self._state
        subject = appender.stored_subject(subject)
        self._check(hdr, data)
        msg_id = headers.stored_text(hdr, headers.MSG_ID) if state.config.duplicate_window.ns > 0 else ""
        if msg_id and appender.reader.known_id(msg_id, now) is not None:
            return
        appender.check_quota(subject, hdr, data)
        if appender.counting is not None:
            hdr, data, _ = appender.counting.add_sourced(subject, hdr, data, origin)
        seq = self._keep(subject, hdr, data, now, now)
        if msg_id:
            state.ids.add(seq, now, msg_id)
            state.dirty = True

    def append_mirrored(self, seq: int, subject: str, hdr: bytes | None, data: bytes, ts: int, now: int) -> None:
        """Store a message under its own sequence, which is later than all before it, and with its own time.

        Raises ApiError before anything has changed.
        """
        appender = self._appender
        subject = appender.stored_subject(subject)
        self._check(hdr, data)
        appender.check_quota(subject, hdr, data)
        if appender.is_bounded and self._state.is_wanted(subject):
            self._check_capacity(subject, hdr, data, self._options(hdr, 0))
        self.skip_to(seq)
        self._keep(subject, hdr, data, ts, now)

    def append_moved(self, message: StoredMessage, now: int) -> None:
        """Store a message that belonged to this stream in another store, as it was there: it is not checked again.

        Its time to live counts from its time. Raises ApiError if it is too large.
        """
        state, hdr, time = self._state, message.hdrs or None, message.time_ns
        self._check(hdr, message.data)
        self.skip_to(message.seq)
        seq = self._appender.store(message.subject, hdr, message.data, time)
        options = self._options(hdr, time)
        if options is not None and options.expires is not None:
            state.timers.add(seq, options.expires)
        msg_id = "" if hdr is None else headers.stored_text(hdr, headers.MSG_ID)
        if msg_id and time > now - state.config.duplicate_window.ns:
            state.ids.add(seq, time, msg_id)
            state.dirty = True

    def begin_schedule(self, seq: int, now: int) -> None:
        """Let the schedule of a stored message run; one that its store did not run either has no effect."""
        row = self._appender.reader.get(seq)
        asked = None if row is None else asked_by(row.hdr)
        if row is None or row.hdr is None or asked is None:
            return
        with suppress(ApiError):
            self._appender.apply(seq, row.subject, scheduled(self._appender, row.subject, row.hdr, asked, now))

    def skip_to(self, seq: int) -> None:
        """Skip all sequences before ``seq`` that are not stored yet."""
        state = self._state
        if seq <= state.last + 1:
            return
        state.write_rows()
        state.last = seq - 1
        if not state.msgs:
            state.first = seq
        # For the pending count of a consumer, a gap is a removal.
        state.removals += 1
        state.dirty = True

    def _check(self, hdr: bytes | None, data: bytes) -> None:
        if self._state.config.sealed:
            raise api_error("JSStreamSealedErr", stream=self._state.name)
        self._appender.check_size(hdr, data)

    def _check_capacity(self, subject: str, hdr: bytes | None, data: bytes, options: StorageOptions | None) -> None:
        size = self._state.size_of(subject, hdr, data)
        check_capacity(self._appender, subject, size, replaces=bool(options and options.rollup))

    def _keep(self, subject: str, hdr: bytes | None, data: bytes, time: int, now: int) -> int:
        appender = self._appender
        if not self._state.is_wanted(subject):
            return appender.skip_one(time)
        options = self._options(hdr, now)
        if appender.is_bounded:
            self._check_capacity(subject, hdr, data, options)
        seq = appender.store(subject, hdr, data, time)
        if options is not None:
            appender.apply(seq, subject, options)
        return seq

    def _options(self, hdr: bytes | None, now: int) -> StorageOptions | None:
        """Return the options that a copy asks for and its stream allows."""
        config = self._state.config
        if hdr is None or not (config.allow_rollup_hdrs or config.allow_msg_ttl):
            return None
        options, fields = StorageOptions(hdr), fields_of(hdr)
        try:
            if config.allow_rollup_hdrs:
                options.rollup = rollup_of(fields.get(headers.ROLLUP, ""), config)
            life = fields.get(headers.TTL) if config.allow_msg_ttl else None
            if life:
                options.expires = expiry(seconds_of(life), now)
        except (ApiError, ValueError):
            # Invalid values have no effect.
            return None
        return None if options == StorageOptions(hdr) else options

    @property
    def keeps_rows(self) -> bool:
        """Whether mirrored rows are stored unchanged, without a check of each message."""
        config = self._state.config
        asks = config.allow_rollup_hdrs or config.allow_msg_ttl
        return self._appender.is_plain and self._appender.mappings is None and not (asks or config.max_age)

    def append_rows(self, rows: Sequence[MessageRow]) -> None:
        """Store rows of another stream under their own sequences; the caller has checked :attr:`keeps_rows`."""
        state = self._state
        gaps = rows[-1].seq - state.last != len(rows)
        self.skip_to(rows[0].seq)
        state.rows += rows
        for seq, _, subject, hdr, data, _ in rows:
            state.bytes += state.size_of(subject, hdr, data)
            state.subjects.add_one(subject, seq)
        state.msgs += len(rows)
        state.removals += gaps
        state.last, state.last_ts, state.dirty = rows[-1].seq, rows[-1].ts, True
