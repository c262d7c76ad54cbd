"""Pieces of work that the engine stages for the shared transaction, and the futures that wait for them.

Publishes of one round of the event loop share one :class:`PublishWork`, acks and settlements one ``SettleWork``
(``settlements.py``), so that their rows are read and written together. Everything else is a :class:`CallWork`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pelton.api import ApiError, Outgoing, PeltonError, PubAck
from pelton.api.admission import not_taken
from pelton.engine.faults import public_error
from pelton.engine.session import Session, retire
from pelton.storage import Work
from pelton.streams import StreamLog, append_atomic, is_bare, is_member, spans_streams

Future = asyncio.Future[Any]


def answer(future: Future, result: object) -> None:
    """Set a result, or an exception, on a future that is not done."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class CallWork:
    """A function of the open transaction, for one caller."""

    size = 1

    def __init__(self, future: Future, call: Callable[[], object], *, durable: bool) -> None:
        self.durable = durable
        self._future = future
        self._call = call
        self._result: object = None

    def run(self) -> None:
        try:
            self._result = None if self._future.cancelled() else self._call()
        except ApiError as error:
            # A refusal is a result: verbs refuse before they change anything.
            self._result = error

    def finish(self) -> None:
        answer(self._future, self._result)

    def fail(self, error: Exception) -> None:
        answer(self._future, public_error(error))

    def pieces(self) -> list[Work]:
        return [self]


class Submission(Protocol):
    """What one caller submitted; ``future`` gets the answer."""

    @property
    def future(self) -> Future: ...


E = TypeVar("E", bound=Submission)


class SharedWork(ABC, Generic[E]):
    """Work of many callers in one round of the event loop; ``entries`` has the submission of each."""

    durable = True

    def __init__(self, session: Session, now: Callable[[], int]) -> None:
        self._session = session
        self._now = now
        self.entries: list[E] = []
        self._results: list[object] = []

    @property
    def size(self) -> int:
        return len(self.entries)

    @abstractmethod
    def run(self) -> None:
        """Fill ``_results``, one per entry; an error among them is the answer to that entry."""

    def finish(self) -> None:
        for entry, result in zip(self.entries, self._results, strict=True):
            answer(entry.future, result)

    def fail(self, error: Exception) -> None:
        for entry in self.entries:
            answer(entry.future, public_error(error))

    def pieces(self) -> list[Work]:
        if len(self.entries) == 1:
            return [self]
        alone: list[Work] = []
        for entry in self.entries:
            work = type(self)(self._session, self._now)
            work.entries.append(entry)
            alone.append(work)
        return alone


class Publishing(NamedTuple):
    """One caller's messages; ``single`` if the answer is one ack and not a list.

    With a ``batch`` id they are stored together or not at all.
    """

    messages: Sequence[Outgoing]
    single: bool
    future: Future
    batch: str = ""


class PublishWork(SharedWork[Publishing]):
    """Messages of many callers, appended in the order in which they were published."""

    def run(self) -> None:
        now = self._now()
        self._results = []
        for log, group in groupby(self.entries, self._plain_log):
            if log is None:
                self._results += [self._one(entry, now) for entry in group]
                continue
            make_ready(self._session, log, now)
            self._results += _append_plain(self._session, log, [entry.messages[0] for entry in group], now)

    def _plain_log(self, entry: Publishing) -> StreamLog | None:
        """Return the stream that takes a message, if neither of them needs any checks, else None."""
        if not entry.single or entry.future.cancelled():
            return None
        message = entry.messages[0]
        log: StreamLog | None = self._session.registry.route(message.subject)
        return log if log is not None and log.appender.is_plain and is_bare(message.headers) else None

    def _one(self, entry: Publishing, now: int) -> object:
        """Return the answer to one caller."""
        if entry.future.cancelled():
            return None
        try:
            if entry.batch:
                return append_as_one(self._session, entry.messages, entry.batch, now)
            acks = append_all(self._session, entry.messages, now)
        except PeltonError as error:
            return error
        return acks[0] if entry.single else acks


def _append_plain(session: Session, log: StreamLog, messages: Sequence[Outgoing], now: int) -> list[PubAck]:
    acks = log.appender.append_plain(messages, now)
    if session.bus.has_subscriptions:
        session.bus.publish(messages)
    return acks


def append_all(session: Session, messages: Sequence[Outgoing], now: int) -> list[PubAck]:
    """Append messages in order; raises the error of the first refused one, after storing those before it."""
    acks: list[PubAck] = []
    bus = session.bus
    for log, group in groupby(messages, lambda message: session.registry.route(message.subject)):
        if log is None:
            raise not_taken(next(group).subject)
        make_ready(session, log, now)
        for bare, run in groupby(group, _is_bare if log.appender.is_plain else _never):
            if bare:
                acks += _append_plain(session, log, list(run), now)
                continue
            for message in run:
                try:
                    acks.append(_append(session, log, message, now))
                except ApiError as error:
                    error.locate(stream=log.name)
                    raise
                if bus.has_subscriptions:
                    bus.publish((message,))
    return acks


def _append(session: Session, log: StreamLog, message: Outgoing, now: int) -> PubAck:
    if is_member(message.headers):
        return session.staging.take(log, message, now)
    return log.appender.append(message.subject, message.headers, message.data, now)


def append_as_one(session: Session, messages: Sequence[Outgoing], batch: str, now: int) -> PubAck:
    """Append all messages to one stream, or none of them; raises the error of the first refused one."""
    log = _only_stream(session, messages)
    make_ready(session, log, now)
    try:
        ack = append_atomic(session.db, log, messages, batch, now)
    except ApiError as error:
        error.locate(stream=log.name)
        raise
    if session.bus.has_subscriptions:
        session.bus.publish(messages)
    return ack


def _only_stream(session: Session, messages: Sequence[Outgoing]) -> StreamLog:
    """Return the stream that takes all messages; raises if no single stream does."""
    found: StreamLog | None = None
    for message in messages:
        log = session.registry.route(message.subject)
        if log is None:
            raise not_taken(message.subject)
        if found is not None and log is not found:
            raise spans_streams(message.subject, found.name, log.name)
        found = log
    assert found is not None, "a batch has messages"
    return found


def make_ready(session: Session, log: StreamLog, now: int) -> None:
    """Apply to a stream, before a write, what is due and what others have republished."""
    registry = session.registry
    if registry.republishers:
        session.dispatcher.catch_up(log)
    registry.use(log).advance(now)
    if log in registry.interests:
        retire(session, log, now)


def _never(message: Outgoing) -> bool:
    return False


def _is_bare(message: Outgoing) -> bool:
    return message.headers is None or is_bare(message.headers)
