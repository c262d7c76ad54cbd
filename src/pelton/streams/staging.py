"""Atomic batches that are published message by message and are not committed yet (ADR-50).

Design: ``Nats-Batch-Id`` names a batch, ``Nats-Batch-Sequence`` counts its messages from 1, ``Nats-Batch-Commit``
ends it: ``1`` with this message, ``eob`` with the one before. Until then the messages wait here, in the memory of
the process that receives them, as they wait on a NATS server's leader: they are in no file, other processes do not see
them, and they are lost when the store is closed. The commit stores them all or none (`append_atomic`).

A batch is abandoned (not stored, and reported by an advisory) if a message is missing, if it grows too large, if it
requires an unsupported API level, or if no message arrives for ten seconds.

Changes of this table are undone if their transaction is rolled back, because it is then run again.

**Atomic batches: messages that are stored together or not at all (ADR-50).** The messages of a batch are appended one
after another like single publishes, so the same limits and checks apply. Two things differ: conditions refer to the
stream as it was before the batch, and a condition about something that the batch itself has written is refused. If one
message is refused, the messages appended before it are undone: a savepoint rolls back the rows, and the log reloads its
small state, which was written just before. Other publishes in the same transaction are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import msgspec

from pelton.api import ApiError, Outgoing, PeltonError, PubAck, api_error, headers
from pelton.api.errors import from_reply
from pelton.api.events import BatchAbandoned, Event, Reason
from pelton.api.json_values import is_level
from pelton.storage import Database
from pelton.streams.log import StreamLog
from pelton.streams.publish_checks import AtomicBatch, asked_by, is_bare

LARGEST: Final = 1000
API_LEVEL: Final = 5


def append_atomic(database: Database, log: StreamLog, messages: Sequence[Outgoing], batch: str, now: int) -> PubAck:
    """Store all messages of a batch, or none; raises the error of the first one that is refused.

    The acknowledgement has the sequence of the last message; the others have the sequences before it.
    """
    if not log.config.allow_atomic:
        log.appender.check_publish(messages[0])
        raise api_error("JSAtomicPublishDisabledErr", stream=log.name)
    if len(messages) > LARGEST:
        raise api_error("JSAtomicPublishTooLargeBatchErrF", stream=log.name, size=LARGEST)
    if log.appender.is_plain and all(is_bare(message.headers) for message in messages):
        # Nothing can be refused.
        last = log.appender.append_plain(messages, now)[-1]
    else:
        with _all_or_nothing(database, log):
            last = _append_each(log, messages, now)
    # As on nats-server, the acknowledgement of a batch has no counter value.
    last.batch, last.count, last.val = batch, len(messages), ""
    return last


def _append_each(log: StreamLog, messages: Sequence[Outgoing], now: int) -> PubAck:
    for message in messages:
        _check_part(log, message)
    appender = log.appender
    with appender.in_batch(AtomicBatch(log.state.last, _lasts(log, messages))):
        for message in messages:
            block = message.headers
            if block is not None and headers.first_value(block, headers.EXPECTED_LAST_MSG_ID):
                name = headers.EXPECTED_LAST_MSG_ID
                raise api_error("JSAtomicPublishUnsupportedHeaderBatchErr", stream=log.name, header=name)
            ack = appender.append(message, now)
    return ack


def _check_part(log: StreamLog, message: Outgoing) -> None:
    """Check a message on its own, before any message of its batch is appended."""
    log.appender.check_publish(message)
    block = message.headers
    if block is not None and not is_level(headers.first_value(block, headers.REQUIRED_API_LEVEL), API_LEVEL):
        raise api_error("JSRequiredApiLevelErr", stream=log.name)


def _lasts(log: StreamLog, messages: Sequence[Outgoing]) -> dict[str, int]:
    """Return the last sequence of every subject and filter that a condition of the batch refers to."""
    found: dict[str, int] = {}
    for message in messages:
        block = message.headers
        asked = asked_by(block) if block is not None and len(block) <= headers.LARGEST else None
        if asked is not None and asked.expected is not None:
            wanted = asked.where or log.appender.stored_subject(message.subject)
            found[wanted] = log.appender.last_seq_of(wanted)
    return found


@contextmanager
def _all_or_nothing(database: Database, log: StreamLog) -> Iterator[None]:
    state = log.state
    was_dirty, republished = state.dirty, list(state.effects.republished)
    log.appender.flush()
    database.execute("SAVEPOINT batch")
    try:
        yield
    except PeltonError:
        database.execute("ROLLBACK TO batch")
        log.state.reset()
        log.state.load()
        state.effects.republished += republished
        state.dirty = was_dirty
        database.execute("RELEASE batch")
        raise
    # Any other exception rolls back the whole transaction, and the savepoint with it.
    state.dirty = state.dirty or was_dirty
    database.execute("RELEASE batch")


def spans_streams(subject: str, batch_of: str, stream: str) -> ApiError:
    """Return the error for a batch whose messages belong to different streams (10176)."""
    known = api_error("JSAtomicPublishIncompleteBatchErr")
    text = f"{known.description}: {subject!r} goes to stream {stream!r}, the messages before it to {batch_of!r}"
    return from_reply(known.code, known.err_code, text, stream=batch_of)


_MARK: Final = f"\r\n{headers.BATCH_ID}:".encode()
_ID_LIMIT: Final = 64
_IDLE: Final = 10 * 10**9
_OF_A_STREAM: Final = 50
_OF_ALL: Final = 1000
_STORED, _ENDED = "1", "eob"


class BatchKey(msgspec.Struct, frozen=True):
    """Names a batch: the row id of its stream, and its own id."""

    stream: int
    batch: str


class BatchMember(msgspec.Struct, frozen=True):
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
        self.is_used: bool = False

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

    def append_all(
        self, log: StreamLog, messages: Sequence[Outgoing], now: int, *, until_refused: bool = False
    ) -> list[PubAck | PeltonError]:
        """Store messages in order, each answered by itself; ``until_refused``: none after the first refused one."""
        blocks = [message.headers for message in messages]
        if log.appender.is_plain and all(map(is_bare, blocks)):
            return cast("list[PubAck | PeltonError]", log.appender.append_plain(messages, now))
        if not any(map(is_member, blocks)):
            return log.appender.append_all(messages, now, until_refused=until_refused)
        answers = list[PubAck | PeltonError]()
        for message in messages:
            if is_member(message.headers):
                answers.append(self._answer_member(log, message, now))
            else:
                answers += log.appender.append_all((message,), now)
            if until_refused and isinstance(answers[-1], PeltonError):
                break
        return answers

    def _answer_member(self, log: StreamLog, message: Outgoing, now: int) -> PubAck | PeltonError:
        try:
            return self.take(log, message, now)
        except PeltonError as error:
            if isinstance(error, ApiError):
                error.locate(stream=log.name)
            return error

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
        messages = [*batch.messages, message] if member.commit == _STORED else _with_commit(batch.messages)
        return append_atomic(self._db, log, messages, member.batch, now)

    def _check(self, log: StreamLog, key: BatchKey, member: BatchMember) -> None:
        """Raise if the message cannot be the next of its batch, and end the batch."""
        batch = self._open.get(key)
        error, reason = self._judge(log, batch, member)
        if error is None:
            return
        self._drop(key)
        if reason is not None:
            self._say(BatchAbandoned(stream=log.name, batch=key.batch, reason=reason))
        raise error

    def _judge(self, log: StreamLog, batch: _Open | None, member: BatchMember) -> tuple[ApiError | None, Reason | None]:
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


def _with_commit(messages: list[Outgoing]) -> list[Outgoing]:
    last = messages[-1]
    block = headers.with_header(last.headers or b"", headers.BATCH_COMMIT, _STORED)
    return [*messages[:-1], Outgoing(last.subject, last.data, block)]
