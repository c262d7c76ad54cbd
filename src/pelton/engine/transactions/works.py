"""Pieces of work that the engine stages for the shared transaction, and the futures that wait for them.

Publishes of one round of the event loop share one :class:`PublishWork`, acks and settlements one ``SettleWork``
(``submissions.py``), so that their rows are read and written together. Everything else is a :class:`CallWork`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, groupby
from operator import attrgetter, methodcaller
from typing import Any, Final, NamedTuple

from pelton.api import ApiError, Outgoing, PeltonError, PubAck
from pelton.api.admission import not_taken
from pelton.engine.faults import public_error
from pelton.engine.session import Session, retire
from pelton.storage import Work
from pelton.streams import PlannedMessage, StreamLog, append_atomic, is_bare, is_member, spans_streams

Future = asyncio.Future[Any]

# From this number on, messages are looked at together.
_MANY: Final = 8
_is_cancelled: Final = methodcaller("cancelled")
_subject_of: Final = attrgetter("subject")
_headers_of: Final = attrgetter("headers")


def answer(future: Future, result: object) -> None:
    """Set a result, or an exception, on a future that is not done."""
    answer_all((future,), (result,))


def answer_all(futures: Iterable[Future], results: Iterable[object]) -> None:
    """Set a result, or an exception, on each of these futures that is not done."""
    for future, result in zip(futures, results, strict=True):
        if future.done():
            continue
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


class Publishing(NamedTuple):
    """One caller's messages; the answer is a list of acks.

    With a ``batch`` id they are stored together or not at all, and the answer is one ack. ``apart``: each is answered
    by itself, with its ack or its error.
    """

    messages: Sequence[Outgoing]
    future: Future
    batch: str = ""
    apart: bool = False


class Singles:
    """Messages of callers that publish one each, and whose answer is one ack."""

    __slots__ = ("futures", "messages")

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []
        self.futures: list[Future] = []

    def __len__(self) -> int:
        return len(self.futures)


class PublishWork:
    """Messages of many callers in one round of the event loop, appended in the order in which they were published."""

    durable = True

    def __init__(self, session: Session, now: Callable[[], int]) -> None:
        self._session = session
        self._now = now
        self._parts: list[Singles | Publishing] = []
        # The last part, if further single messages join it.
        self._singles: Singles | None = None
        self._results: list[object] = []

    def add_one(self, message: Outgoing, future: Future) -> None:
        """Add the message of one caller."""
        singles = self._singles
        if singles is None:
            singles = self._singles = Singles()
            self._parts.append(singles)
        singles.messages.append(message)
        singles.futures.append(future)

    def add(self, entry: Publishing) -> None:
        """Add the messages of one caller."""
        self._parts.append(entry)
        self._singles = None

    @property
    def size(self) -> int:
        return sum(len(part) if isinstance(part, Singles) else 1 for part in self._parts)

    def run(self) -> None:
        """Store the messages; the answer to each caller is a result, or the error of its own messages."""
        now = self._now()
        self._results = []
        for part in self._parts:
            if isinstance(part, Singles):
                self._results += self._store_singles(part, now)
            else:
                self._results.append(self._store(part, now))

    def _store_singles(self, singles: Singles, now: int) -> list[object]:
        messages, futures = singles.messages, singles.futures
        if not any(map(_is_cancelled, futures)):
            acks = append_plain(self._session, messages, now)
            if acks is not None:
                return list(acks)
        results: list[object] = []
        numbered = zip(messages, futures, strict=True)
        for log, run in groupby(numbered, self._plain_log):
            # A message of the run before may have been the stream's first schedule.
            if log is None or not log.appender.is_plain:
                results += self._store_others(list(run), now)
                continue
            make_ready(self._session, log, now)
            results += _append_plain(self._session, log, [message for message, _ in run], now)
        return results

    def _plain_log(self, single: tuple[Outgoing, Future]) -> StreamLog | None:
        """Return the stream that takes a message, if neither of them needs any checks, else None."""
        message, future = single
        if future.cancelled():
            return None
        log: StreamLog | None = self._session.registry.route(message.subject)
        return log if log is not None and log.appender.is_plain and is_bare(message.headers) else None

    def _store_others(self, run: Sequence[tuple[Outgoing, Future]], now: int) -> Sequence[object]:
        if not any(future.cancelled() for _, future in run):
            return append_apart(self._session, [message for message, _ in run], now)
        wanted = [not future.cancelled() for _, future in run]
        answers = iter(append_apart(self._session, [message for message, _ in compress(run, wanted)], now))
        return [next(answers) if is_wanted else None for is_wanted in wanted]

    def _store(self, entry: Publishing, now: int) -> object:
        if entry.future.cancelled():
            return None
        try:
            if entry.batch:
                return append_as_one(self._session, entry.messages, entry.batch, now)
            if entry.apart:
                return append_apart(self._session, entry.messages, now)
            return append_all(self._session, entry.messages, now)
        except PeltonError as error:
            return error

    def _futures(self) -> list[Future]:
        if len(self._parts) == 1 and self._singles is not None:
            return self._singles.futures
        futures: list[Future] = []
        for part in self._parts:
            if isinstance(part, Singles):
                futures += part.futures
            else:
                futures.append(part.future)
        return futures

    def finish(self) -> None:
        answer_all(self._futures(), self._results)

    def fail(self, error: Exception) -> None:
        for future in self._futures():
            answer(future, public_error(error))

    def pieces(self) -> list[Work]:
        if self.size == 1:
            return [self]
        alone: list[Work] = []
        for part in self._parts:
            if isinstance(part, Singles):
                alone += [self._alone(*single) for single in zip(part.messages, part.futures, strict=True)]
            else:
                work = PublishWork(self._session, self._now)
                work.add(part)
                alone.append(work)
        return alone

    def _alone(self, message: Outgoing, future: Future) -> PublishWork:
        work = PublishWork(self._session, self._now)
        work.add_one(message, future)
        return work


def append_plain(session: Session, messages: Sequence[Outgoing], now: int) -> list[PubAck] | None:
    """Store many messages, with one look at what takes them, if one stream takes all without a check; else None."""
    if len(messages) < _MANY:
        return None
    blocks = list(map(_headers_of, messages))
    if blocks.count(None) < len(blocks) and not all(map(is_bare, blocks)):
        return None
    logs = session.registry.route_all(set(map(_subject_of, messages)))
    log = logs.pop() if len(logs) == 1 else None
    if log is None or not log.appender.is_plain:
        return None
    make_ready(session, log, now)
    return _append_plain(session, log, messages, now)


def _append_plain(session: Session, log: StreamLog, messages: Sequence[Outgoing], now: int) -> list[PubAck]:
    acks = log.appender.append_plain(messages, now)
    if session.bus.has_subscriptions:
        session.bus.publish(messages)
    return acks


def append_all(session: Session, messages: Sequence[Outgoing], now: int) -> list[PubAck]:
    """Append messages in order; raises the error of the first refused one, after storing those before it."""
    stored = append_plain(session, messages, now)
    if stored is not None:
        return stored
    acks: list[PubAck] = []
    for answer in _Appending(session, now, until_refused=True).append(messages):
        if not isinstance(answer, PubAck):
            raise answer
        acks.append(answer)
    return acks


def append_apart(session: Session, messages: Sequence[Outgoing], now: int) -> list[PubAck | PeltonError]:
    """Append messages in order; return the ack of each, or why it is refused, which does not affect the others."""
    stored = append_plain(session, messages, now)
    if stored is not None:
        return list[PubAck | PeltonError](stored)
    return _Appending(session, now, until_refused=False).append(messages)


class _Appending:
    """Appends messages to whatever streams take them. ``until_refused``: none after the first that is refused."""

    __slots__ = ("_now", "_session", "_until_refused", "answers")

    def __init__(self, session: Session, now: int, *, until_refused: bool) -> None:
        self._session = session
        self._now = now
        self._until_refused = until_refused
        self.answers: list[PubAck | PeltonError] = []

    @property
    def is_over(self) -> bool:
        return self._until_refused and bool(self.answers) and not isinstance(self.answers[-1], PubAck)

    def append(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Return an answer for each message, or for those up to the first refused one."""
        session, route = self._session, self._session.registry.route_of_many
        for log, group in groupby(messages, lambda message: route(message.subject)):
            if self.is_over:
                break
            run = list(group)
            if log is None:
                self.answers += [not_taken(message.subject) for message in run[: 1 if self._until_refused else None]]
                continue
            make_ready(session, log, self._now)
            if len(run) >= _MANY and log.appender.takes_checked_bulk:
                self._append_checked(log, run)
            else:
                self._append_each(log, run)
        return self.answers

    def _append_checked(self, log: StreamLog, messages: Sequence[Outgoing]) -> None:
        """Append messages, those of the usual forms in bulk."""
        plans = list(map(log.checked_bulk.plan, messages))
        if all(plans):
            self._append_planned(log, list(filter(None, plans)))
            return
        for _, pairs in groupby(zip(messages, plans, strict=True), _has_plan):
            if self.is_over:
                break
            run = list(pairs)
            planned = [plan for _, plan in run if plan is not None]
            if len(planned) >= _MANY:
                self._append_planned(log, planned)
            else:
                self._append_each(log, [message for message, _ in run])

    def _append_planned(self, log: StreamLog, plans: Sequence[PlannedMessage]) -> None:
        answers, stored = log.checked_bulk.append(plans, self._now, until_refused=self._until_refused)
        for answer in answers:
            if isinstance(answer, ApiError):
                answer.locate(stream=log.name)
        self.answers += answers
        if stored and self._session.bus.has_subscriptions:
            self._session.bus.publish(stored)
        if not self.is_over:
            self._append_each(log, [plan.message for plan in plans[len(answers) :]])

    def _append_each(self, log: StreamLog, messages: Sequence[Outgoing]) -> None:
        session, bus, appender = self._session, self._session.bus, log.appender
        # Asked for each message when its turn comes: after a schedule, the next may replace it.
        for is_plain, run in groupby(messages, lambda message: is_bare(message.headers) and appender.is_plain):
            if is_plain:
                self.answers += _append_plain(session, log, list(run), self._now)
                continue
            for message in run:
                try:
                    self.answers.append(_append(session, log, message, self._now))
                except PeltonError as error:
                    if isinstance(error, ApiError):
                        error.locate(stream=log.name)
                    self.answers.append(error)
                    if self._until_refused:
                        return
                    continue
                if bus.has_subscriptions:
                    bus.publish((message,))


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


def _has_plan(pair: tuple[Outgoing, PlannedMessage | None]) -> bool:
    return pair[1] is not None
