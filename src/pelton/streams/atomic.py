"""Atomic batches: messages that are stored together or not at all (ADR-50).

Design: The messages of a batch are appended one after another like single publishes, so the same limits and checks
apply. Two things differ: conditions refer to the stream as it was before the batch, and a condition about something
that the batch itself has written is refused. If one message is refused, the messages appended before it are undone: a
savepoint rolls back the rows, and the log reloads its small state, which was written just before. Other publishes in
the same transaction are not affected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pelton.api import ApiError, Outgoing, PeltonError, PubAck, api_error, headers
from pelton.api.errors import from_reply
from pelton.api.json_values import is_level
from pelton.storage import Database
from pelton.streams.log import StreamLog
from pelton.streams.publish_checks import AtomicBatch, expectations, is_bare, last_expected_of

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
            ack = appender.append(message.subject, block, message.data, now)
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
        asked = expectations(block) if block is not None and len(block) <= headers.LARGEST else None
        if asked is not None and asked.last_subject_seq is not None:
            wanted = asked.last_subject_filter or log.appender.stored_subject(message.subject)
            found[wanted] = last_expected_of(log.appender, wanted)
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
