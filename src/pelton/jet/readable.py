"""Reads a stream's messages without consuming them: the lookups of :class:`pelton.Stream`.

Streams that allow it (``allow_direct``) are read by direct get (ADR-31), which has less overhead; others
one message at a time, through the administrative API. The results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pelton.api import (
    Backend,
    ConfigError,
    DirectGet,
    DirectGetDisabledError,
    MessageNotFoundError,
    MsgGet,
    StoredMessage,
    StreamConfig,
    WireMessage,
    parse_rfc3339,
)
from pelton.api.arguments import check_text, check_whole, items_of
from pelton.api.build import time_text

_BATCH: Final = 256


class Readable:
    """A stream to read from. ``config`` is its last known configuration."""

    def __init__(self, backend: Backend, config: StreamConfig) -> None:
        self._backend = backend
        self.config = config

    @property
    def _about(self) -> str:
        return f"stream {self.config.name!r}"

    async def get_message(self, seq: int) -> StoredMessage:
        """Return the message with this sequence. Raises MessageNotFoundError, CorruptMessageError."""
        config = self.config
        if type(seq) is not int:
            check_whole(self._about, "seq", seq)
        if config.allow_direct:
            try:
                return (await self._backend.direct_get(config.name, DirectGet(seq=seq))).messages[0]
            except DirectGetDisabledError:
                pass  # It was changed in the meantime.
        return await self._asked(MsgGet(stream=config.name, seq=seq))

    async def get_last_message(self, subject: str) -> StoredMessage:
        """Return the last message of a subject or filter. Raises MessageNotFoundError, ConfigError."""
        config = self.config
        check_text(self._about, "subject", subject)
        if config.allow_direct:
            try:
                return (await self._backend.direct_get(config.name, DirectGet(last_by_subj=subject))).messages[0]
            except DirectGetDisabledError:
                pass
        return await self._asked(MsgGet(stream=config.name, last_by_subj=subject))

    async def get_next_message(self, subject: str, seq: int = 1) -> StoredMessage:
        """Return the first message of a subject or filter from ``seq`` on. Raises MessageNotFoundError, ConfigError."""
        config = self.config
        check_text(self._about, "subject", subject)
        check_whole(self._about, "seq", seq)
        if config.allow_direct:
            try:
                request = DirectGet(next_by_subj=subject, seq=seq)
                return (await self._backend.direct_get(config.name, request)).messages[0]
            except DirectGetDisabledError:
                pass
        return await self._asked(MsgGet(stream=config.name, seq=seq, next_by_subj=subject))

    async def get_messages(
        self,
        batch: int = _BATCH,
        *,
        seq: int = 1,
        subject: str = ">",
        start_time: datetime | str | None = None,
        max_bytes: int = 0,
    ) -> list[StoredMessage]:
        """Return up to ``batch`` messages of a subject or filter, from ``seq`` or ``start_time`` on; empty at the end.

        A batch ends with the message that reaches ``max_bytes`` (0: 64 MiB), so read on from the last sequence
        plus one until it is empty. ``start_time`` is an aware datetime or RFC 3339 text. Needs ``allow_direct``.
        Raises ConfigError, DirectGetDisabledError; CorruptMessageError when the first one is damaged.
        """
        check_whole(self._about, "batch", batch, 1)
        check_whole(self._about, "max_bytes", max_bytes)
        check_whole(self._about, "seq", seq)
        check_text(self._about, "subject", subject)
        begin = 0 if start_time is not None else seq
        request = DirectGet(
            seq=begin,
            start_time=time_text("start_time", start_time, self._about),
            next_by_subj=subject,
            batch=batch,
            max_bytes=max_bytes,
        )
        try:
            return (await self._backend.direct_get(self.config.name, request)).messages
        except MessageNotFoundError:
            return []

    async def get_last_messages(
        self, subjects: str | Iterable[str], *, up_to_seq: int = 0, up_to_time: datetime | str | None = None
    ) -> list[StoredMessage]:
        """Return the last message of each subject that matches, by sequence, all as of one moment.

        That is now, or when ``up_to_seq`` was the last sequence, or just before ``up_to_time``, as far as the
        stream still holds its messages of that time. Needs ``allow_direct``. Raises TooManyResultsError when more than
        1,024 subjects match, ConfigError, DirectGetDisabledError.
        """
        given = [subjects] if isinstance(subjects, str) else items_of(self._about, "subjects", subjects, "subjects")
        filters = tuple(given)
        for subject in filters:
            check_text(self._about, "a subject", subject)
        if not filters:
            return []
        before = time_text("up_to_time", up_to_time, self._about)
        check_whole(self._about, "up_to_seq", up_to_seq)
        if up_to_seq and before:
            raise ConfigError(f"{self._about}: up_to_seq and up_to_time: give one of the two")
        found: list[StoredMessage] = []
        seq = 0
        while True:
            request = DirectGet(multi_last=filters, seq=seq, up_to_seq=up_to_seq, up_to_time=before)
            try:
                reply = await self._backend.direct_get(self.config.name, request)
            except MessageNotFoundError:
                return found
            found += reply.messages
            if not reply.num_pending or not reply.messages:
                return found
            seq, up_to_seq, before = reply.last_seq + 1, reply.up_to_seq, ""

    async def _asked(self, request: MsgGet) -> StoredMessage:
        return _stored((await self._backend.call(request)).message)


async def at_leader(
    backend: Backend, stream: str, *, seq: int = 0, last_by_subj: str = "", next_by_subj: str = ""
) -> StoredMessage | None:
    """Return a message from the stream's leader, as replicas may lag behind; None if there is none."""
    request = MsgGet(stream=stream, seq=seq, last_by_subj=last_by_subj, next_by_subj=next_by_subj)
    try:
        return _stored((await backend.call(request)).message)
    except MessageNotFoundError:
        return None


def _stored(message: WireMessage) -> StoredMessage:
    return StoredMessage(message.subject, message.seq, parse_rfc3339(message.time), message.hdrs, message.data)
