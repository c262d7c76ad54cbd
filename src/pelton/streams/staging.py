"""Atomic batches that are published message by message and are not committed yet (ADR-50).

Design: ``Nats-Batch-Id`` names a batch, ``Nats-Batch-Sequence`` counts its messages from 1, ``Nats-Batch-Commit``
ends it: ``1`` with this message, ``eob`` with the one before. Until then the messages wait here, in the memory of
the process that receives them, as they wait on a NATS server's leader: they are in no file, other processes do not see
them, and they are lost when the store is closed. The commit stores them all or none (``atomic.py``).

A batch is abandoned (not stored, and reported by an advisory) if a message is missing, if it grows too large, if it
requires an unsupported API level, or if no message arrives for ten seconds.

Changes of this table are undone if their transaction is rolled back, because it is then run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pelton.api import ApiError, Outgoing, PubAck, api_error, headers
from pelton.api.events import BatchAbandoned, Event, Reason
from pelton.api.json_values import is_level
from pelton.storage import Database
from pelton.streams.atomic import API_LEVEL, LARGEST, append_atomic
from pelton.streams.log import StreamLog

_MARK: Final = f"\r\n{headers.BATCH_ID}:".encode()
_ID_LIMIT: Final = 64
_IDLE: Final = 10 * 10**9
_OF_A_STREAM: Final = 50
_OF_ALL: Final = 1000
_STORED, _ENDED = "1", "eob"


class BatchKey(NamedTuple):
    """Names a batch: the row id of its stream, and its own id."""

    stream: int
    batch: str


class BatchMember(NamedTuple):
    """The batch headers of a message; ``commit`` is None if the batch continues."""

    batch: str
    seq: int
    commit: str | None
    level: str

    @property
    def position(self) -> int:
        """How many messages the batch has up to this one; for a server, none before the first are very many."""
        return (self.seq - (self.commit == _ENDED)) % (1 << 64)


class _Open:
    """A batch that is not committed."""

    __slots__ = ("due", "messages", "stream")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.messages: list[Outgoing] = []
        self.due = 0


class _Undo(NamedTuple):
    key: BatchKey
    batch: _Open | None
    length: int
    due: int


def is_member(block: bytes | None) -> bool:
    """Whether a message belongs to a batch."""
    return block is not None and _MARK in block and bool(headers.first_value(block, headers.BATCH_ID))


def member_of(block: bytes) -> BatchMember:
    """Parse the batch headers of a header block; raises ApiError 10179, 10175."""
    batch = headers.first_value(block, headers.BATCH_ID) or ""
    if len(batch.encode("utf-8", "surrogateescape")) > _ID_LIMIT:
        raise api_error("JSAtomicPublishInvalidBatchIDErr")
    text = headers.first_value(block, headers.BATCH_SEQUENCE) or ""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise api_error("JSAtomicPublishMissingSeqErr")
    level = headers.first_value(block, headers.REQUIRED_API_LEVEL) or ""
    return BatchMember(batch, int(text), headers.first_value(block, headers.BATCH_COMMIT), level)


class Staging:
    """The open batches of all streams of one store, in one process.

    ``say`` sends an event when the transaction commits.
    """

    def __init__(self, database: Database, say: Callable[[Event], None]) -> None:
        self._db = database
        self._say = say
        self._open: dict[BatchKey, _Open] = {}
        self._undo: list[_Undo] = []
        # Whether there are open batches, or the transaction has touched any.
        self.is_used = False

    # --- transactions

    def committed(self) -> None:
        """Keep the changes since the last commit."""
        self._undo.clear()
        self.is_used = bool(self._open)

    def rolled_back(self) -> None:
        """Undo the changes since the last commit."""
        for key, batch, length, due in reversed(self._undo):
            if batch is None:
                self._open.pop(key, None)
            else:
                del batch.messages[length:]
                batch.due = due
                self._open[key] = batch
        self.committed()

    # --- messages

    def take(self, log: StreamLog, message: Outgoing, now: int) -> PubAck:
        """Add one message to its batch, or commit the batch with it.

        Return an acknowledgement without a stream and with sequence 0 if the batch continues. Raises ApiError, which
        may end the batch.
        """
        log.appender.check_publish(message)
        if not log.config.allow_atomic:
            raise api_error("JSAtomicPublishDisabledErr", stream=log.name)
        member = member_of(message.headers or b"")
        self.sweep(now)
        key = BatchKey(log.id, member.batch)
        self._check(log, key, member)
        batch = self._open.get(key) or _Open(log.name)
        if member.commit is None:
            self._remember(key)
            self._open[key] = batch
            batch.messages.append(message)
            batch.due = now + _IDLE
            return PubAck("", 0)
        self._drop(key)
        messages = [*batch.messages, message] if member.commit == _STORED else _ended(batch.messages)
        return append_atomic(self._db, log, messages, member.batch, now)

    def _check(self, log: StreamLog, key: BatchKey, member: BatchMember) -> None:
        """Raise if the message cannot be the next of its batch, and end the batch."""
        batch = self._open.get(key)
        error, reason = self._judged(log, batch, member)
        if error is None:
            return
        self._drop(key)
        if reason is not None:
            self._say(BatchAbandoned(stream=log.name, batch=key.batch, reason=reason))
        raise error

    def _judged(
        self, log: StreamLog, batch: _Open | None, member: BatchMember
    ) -> tuple[ApiError | None, Reason | None]:
        """Return why the message cannot be the next, and the reason that the advisory gives."""
        if not is_level(member.level, API_LEVEL):
            return api_error("JSRequiredApiLevelErr", stream=log.name), "unsupported"
        if member.position > LARGEST:
            error = api_error("JSAtomicPublishTooLargeBatchErrF", stream=log.name, size=LARGEST)
            return error, "large" if batch is not None else None
        incomplete = api_error("JSAtomicPublishIncompleteBatchErr", stream=log.name)
        if member.seq != (len(batch.messages) + 1 if batch is not None else 1):
            return incomplete, "incomplete" if batch is not None else None
        if member.commit not in (None, _STORED, _ENDED):
            return api_error("JSAtomicPublishInvalidBatchCommitErr", stream=log.name), None
        if batch is None and self._is_full(log.id):
            return api_error("JSAtomicPublishTooManyInflight", stream=log.name), None
        return (incomplete, "incomplete") if batch is None and member.commit == _ENDED else (None, None)

    def _is_full(self, stream: int) -> bool:
        return len(self._open) >= _OF_ALL or sum(key.stream == stream for key in self._open) >= _OF_A_STREAM

    # --- the end of batches

    @property
    def due(self) -> int | None:
        """When the first batch times out; None if none is open."""
        return min((batch.due for batch in self._open.values()), default=None)

    def sweep(self, now: int) -> None:
        """Abandon the batches that have timed out."""
        for key in [key for key, batch in self._open.items() if batch.due <= now]:
            stream = self._open[key].stream
            self._drop(key)
            self._say(BatchAbandoned(stream=stream, batch=key.batch, reason="timeout"))

    def shift(self, by: int) -> None:
        """Let batches time out as much later: the clock has jumped."""
        for batch in self._open.values():
            batch.due += by

    def drop_stream(self, stream: int) -> None:
        """Forget the batches of a stream that is gone, or no longer allows batches."""
        for key in [key for key in self._open if key.stream == stream]:
            self._drop(key)

    def _drop(self, key: BatchKey) -> None:
        if key in self._open:
            self._remember(key)
            del self._open[key]

    def _remember(self, key: BatchKey) -> None:
        batch = self._open.get(key)
        self.is_used = True
        self._undo.append(_Undo(key, batch, len(batch.messages) if batch else 0, batch.due if batch else 0))


def _ended(messages: list[Outgoing]) -> list[Outgoing]:
    """Return the messages with a commit header on the last one."""
    last = messages[-1]
    block = headers.with_header(last.headers or b"", headers.BATCH_COMMIT, _STORED)
    return [*messages[:-1], Outgoing(last.subject, last.data, block)]
