"""Messages that are copied into a stream from another one: sources and mirrors (ADR-59).

A copy was accepted once already. So nothing that it asks for is a condition any more, and what its new stream does not
allow (to replace others, to expire) is kept as it stands and has no effect. It is refused only where there is no room
for it. A sourced message is a new one of this stream; a mirrored one keeps its sequence and its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from pelton.api import ApiError, api_error, headers
from pelton.storage import Row
from pelton.streams.log import StreamLog
from pelton.streams.rollup import rollup_of
from pelton.streams.room import check_room
from pelton.streams.wishes import Wish, expiry, seconds_of


class CopyingLog(StreamLog):
    """A stream's messages, where some come from other streams."""

    def append_sourced(self, subject: str, hdr: bytes, data: bytes, now: int, origin: tuple[str, str]) -> None:
        """Store a message of the stream and under the subject that ``origin`` names, or drop it as a duplicate.

        Raises ApiError before anything has changed.
        """
        subject = self.stored_subject(subject)
        self._check_copy(hdr, data)
        msg_id = headers.first(hdr, headers.MSG_ID) if self.config.duplicate_window > 0 else None
        if msg_id and self.known_id(msg_id, now) is not None:
            return
        self._check_quota(subject, hdr, data)
        if self._counting is not None:
            hdr, data, _ = self._counting.add_sourced(subject, hdr, data, origin)
        seq = self._keep(subject, hdr, data, now, now)
        if msg_id:
            self.ids.add(seq, now, msg_id)
            self.dirty = True

    def append_mirrored(self, seq: int, subject: str, hdr: bytes | None, data: bytes, times: tuple[int, int]) -> None:
        """Store a message under a later sequence than all before it; ``times``: its own, and now.

        Raises ApiError before anything has changed.
        """
        subject = self.stored_subject(subject)
        self._check_copy(hdr, data)
        self._check_quota(subject, hdr, data)
        if self._checked and self._is_kept(subject):
            check_room(self, subject, self.size_of(subject, hdr, data), replaces=bool(self._wish(hdr, 0)))
        self.skip_to(seq)
        self._keep(subject, hdr, data, *times)

    def skip_to(self, seq: int) -> None:
        """Leave out all sequences before ``seq`` that are not stored yet."""
        if seq <= self.last + 1:
            return
        self._write_rows()
        self.last = seq - 1
        if not self.msgs:
            self.first = seq
        # To a consumer that counts what lies ahead, a gap is a removal.
        self.removals += 1
        self.dirty = True

    def _check_copy(self, hdr: bytes | None, data: bytes) -> None:
        if self.config.sealed:
            raise api_error("JSStreamSealedErr", stream=self.name)
        self._check_size(hdr, data)

    def _check_quota(self, subject: str, hdr: bytes | None, data: bytes) -> None:
        if self.quota is not None:
            self.quota(self.config.storage, self.size_of(subject, hdr, data))

    def _is_kept(self, subject: str) -> bool:
        return self.is_wanted is None or self.is_wanted(subject)

    def _keep(self, subject: str, hdr: bytes | None, data: bytes, time: int, now: int) -> int:
        if not self._is_kept(subject):
            return self._pass(time)
        wish = self._wish(hdr, now)
        if self._checked:
            check_room(self, subject, self.size_of(subject, hdr, data), replaces=bool(wish and wish.rollup))
        seq = self._store(subject, hdr, data, time)
        if wish is not None:
            self._fulfil(seq, subject, wish)
        return seq

    def _wish(self, hdr: bytes | None, now: int) -> Wish | None:
        """Return what a copy asks for and is allowed."""
        if hdr is None or not (self.config.allow_rollup_hdrs or self.config.allow_msg_ttl):
            return None
        wish = Wish(hdr)
        try:
            if self.config.allow_rollup_hdrs:
                wish = wish._replace(rollup=rollup_of(hdr, self.config))
            life = headers.first(hdr, headers.TTL) if self.config.allow_msg_ttl else None
            if life:
                wish = wish._replace(expires=expiry(seconds_of(life), now))
        except (ApiError, ValueError):
            # What makes no sense asks for nothing.
            return None
        return None if wish == Wish(hdr) else wish

    @property
    def keeps_rows(self) -> bool:
        """Whether mirrored messages are stored as they lie in their origin, without any look at them."""
        config = self.config
        asks = config.allow_rollup_hdrs or config.allow_msg_ttl
        return self.is_plain and self._mappings is None and not (asks or config.max_age)

    def append_rows(self, rows: Sequence[Row]) -> None:
        """Store rows of another stream under their own sequences; the caller has seen that :attr:`keeps_rows` holds."""
        gaps = rows[-1][0] - self.last != len(rows)
        self.skip_to(rows[0][0])
        self._rows += rows
        for seq, _, subject, hdr, data, _ in rows:
            self.bytes += self.size_of(subject, hdr, data)
            self._count_subject(subject, seq)
        self.msgs += len(rows)
        self.removals += gaps
        self.last, self.last_ts, self.dirty = rows[-1][0], rows[-1][1], True
