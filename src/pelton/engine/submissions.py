"""What callers submit for the shared transaction: messages, settlements, and functions.

**Publishes of one round of the event loop join one piece of work, acks and settlements another**, until the transaction
that runs them begins: so their rows are read and written together. Work of a single caller runs at once.

**One way to store messages** (:func:`store`), for publishes, settlements, a server's clients, and transactions that
users hold open. Messages that one stream takes without a check are stored with one look at what takes them. Others are
stored in their order, those of a stream that follow each other as a group (``streams/appender.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain, compress, groupby, islice
from operator import attrgetter, methodcaller
from typing import Any, Final, Literal, cast

import msgspec

from pelton.api import AckOp, ApiError, ConfigError, Outgoing, PeltonError, PubAck, Settled
from pelton.api.admission import not_taken
from pelton.consumers import Settlement
from pelton.engine.host import Door, public_error
from pelton.engine.session import Session, retire
from pelton.runtime import running_loop
from pelton.storage import Committer, Fault, Work
from pelton.streams import StreamLog, append_atomic, is_bare, spans_streams

Future = asyncio.Future[Any]
Answer = PubAck | PeltonError
Policy = Literal["until refused", "apart", "atomic"]
"""Whether messages after a refused one are stored; ``atomic``: all of them, in one stream, or none."""

ConsumerKey = tuple[str, str]
"""A consumer, by the name of its stream and its own name."""

_is_cancelled: Final = methodcaller("cancelled")
_subject_of: Final = attrgetter("subject")
_headers_of: Final = attrgetter("headers")


# --- storing messages


def store(session: Session, messages: Sequence[Outgoing], policy: Policy) -> list[Answer]:
    """Append messages, in order, to whatever streams take them; return the answer to each, in order.

    ``until refused``: none after the first that is refused, whose answer is the last. ``atomic``: there is one answer.
    """
    if not messages:
        return []
    if policy == "atomic":
        return [_store_as_one(session, messages)]
    stored = store_plain(session, messages)
    if stored is not None:
        return cast("list[Answer]", stored)
    answers, now, until_refused = list[Answer](), session.now(), policy == "until refused"
    route = session.registry.routes.find_of_many
    for log, group in groupby(messages, lambda message: route(message.subject)):
        if log is None:
            answers += [not_taken(message.subject) for message in islice(group, 1 if until_refused else None)]
        else:
            answers += _append(session, log, list(group), now, until_refused=until_refused)
        if until_refused and isinstance(answers[-1], PeltonError):
            break
    return answers


def _store_one(session: Session, message: Outgoing) -> Answer:
    return store(session, (message,), "apart")[0]


def all_stored(answers: list[Answer]) -> list[PubAck]:
    """Return the acks of messages that were stored until one was refused; raise why, if one was."""
    if answers and isinstance(refusal := answers[-1], PeltonError):
        raise refusal
    return cast("list[PubAck]", answers)


def store_plain(session: Session, messages: Sequence[Outgoing], apart_from: str = "") -> list[PubAck] | None:
    """Store messages with one look at what takes them, if one stream takes all without a check; else None.

    None also if that stream has the name ``apart_from``.
    """
    routes = session.registry.routes
    if len(messages) == 1:
        [message] = messages
        is_plain = message.headers is None or is_bare(message.headers)
        log = routes.find_of_many(message.subject) if is_plain else None
    else:
        blocks = list(map(_headers_of, messages))
        if blocks.count(None) < len(blocks) and not all(map(is_bare, blocks)):
            return None
        logs = routes.find_all(set(map(_subject_of, messages)))
        log = logs.pop() if len(logs) == 1 else None
    if log is None or log.name == apart_from or not session.registry.use(log).appender.is_plain:
        return None
    now = session.now()
    make_ready(session, log, now, reads=False)
    return _append_plain(session, log, messages, now)


def _append_plain(session: Session, log: StreamLog, messages: Sequence[Outgoing], now: int) -> list[PubAck]:
    acks, bus = log.appender.append_plain(messages, now), session.bus
    # Most of what a server stores is for nobody else: its own clients have it already.
    if bus.has_subscriptions and (bus.num_others or not bus.is_routed):
        bus.publish(messages)
    return acks


def make_ready(session: Session, log: StreamLog, now: int, *, reads: bool = True) -> None:
    """Apply to a used stream, before a write, what is due and what others have republished.

    ``reads``: whether the write depends on what is stored; otherwise, much that has expired may be left to the next.
    """
    registry = session.registry
    if registry.republishers:
        session.dispatcher.catch_up(log)
    if log.state.is_overdue(now):
        # What is left of a roll-up is never the last of a subject: no condition of a message depends on it.
        if log.state.is_trimmed or (reads and log.state.ages):
            log.advance(now)
        else:
            log.advance_some(now)
    if log in registry.interests:
        retire(session, log, now)


def _append(
    session: Session, log: StreamLog, messages: Sequence[Outgoing], now: int, *, until_refused: bool
) -> list[Answer]:
    make_ready(session, session.registry.use(log), now)
    answers = session.staging.append_all(log, messages, now, until_refused=until_refused)
    if session.bus.has_subscriptions:
        pairs = zip(messages, answers, strict=False)
        session.bus.publish([message for message, answer in pairs if isinstance(answer, PubAck)])
    return answers


def _store_as_one(session: Session, messages: Sequence[Outgoing]) -> Answer:
    """Append all messages to one stream, or none of them; return the ack of the last, or why one is refused."""
    try:
        log = _only_stream(session, messages)
    except PeltonError as error:
        return error
    now = session.now()
    make_ready(session, session.registry.use(log), now)
    try:
        ack = append_atomic(session.db, log, messages, session.new_id(), now)
    except PeltonError as error:
        if isinstance(error, ApiError):
            error.locate(stream=log.name)
        return error
    if session.bus.has_subscriptions:
        session.bus.publish(messages)
    return ack


def _only_stream(session: Session, messages: Sequence[Outgoing]) -> StreamLog:
    """Return the stream that takes all messages; raises if no single stream does."""
    found: StreamLog | None = None
    for message in messages:
        log = session.registry.routes.find(message.subject)
        if log is None:
            raise not_taken(message.subject)
        if found is not None and log is not found:
            raise spans_streams(message.subject, found.name, log.name)
        found = log
    assert found is not None, "a batch has messages"
    return found


# --- pieces of work for the shared transaction, and the futures that wait for them


def answer(future: Future, result: object) -> None:
    """Set a result, or an exception, on a future that is not done."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


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


class Publishing(msgspec.Struct, frozen=True):
    """Messages of one caller, whose answer is a list; or, if the policy is atomic, one ack."""

    messages: Sequence[Outgoing]
    future: Future
    policy: Policy = "until refused"


class Singles:
    """Messages of callers that publish one each, and whose answer is one ack."""

    __slots__ = ("futures", "messages")

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []
        self.futures: list[Future] = []


class PublishWork:
    """Messages of many callers in one round of the event loop, appended in the order in which they were published."""

    durable = True

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parts: list[Singles | Publishing] = []
        # The last part, if further single messages join it.
        self._singles: Singles | None = None
        self._results: list[object] = []

    def add_one(self, message: Outgoing, future: Future) -> None:
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
        return sum(len(part.futures) if isinstance(part, Singles) else 1 for part in self._parts)

    def run(self) -> None:
        """Store the messages; the answer to each caller is a result, or the error of its own messages."""
        self._results = []
        for part in self._parts:
            if isinstance(part, Singles):
                self._results += self._store_singles(part)
            else:
                self._results.append(self._store(part))

    def _store_singles(self, singles: Singles) -> Sequence[object]:
        if not any(map(_is_cancelled, singles.futures)):
            return store(self._session, singles.messages, "apart")
        wanted = [not future.cancelled() for future in singles.futures]
        answers = iter(store(self._session, list(compress(singles.messages, wanted)), "apart"))
        return [next(answers) if is_wanted else None for is_wanted in wanted]

    def _store(self, entry: Publishing) -> object:
        if entry.future.cancelled():
            return None
        answers = store(self._session, entry.messages, entry.policy)
        if entry.policy == "apart":
            return answers
        refused = isinstance(answers[-1], PeltonError)
        return answers[-1] if refused or entry.policy == "atomic" else answers

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
                work = PublishWork(self._session)
                work.add(part)
                alone.append(work)
        return alone

    def _alone(self, message: Outgoing, future: Future) -> PublishWork:
        work = PublishWork(self._session)
        work.add_one(message, future)
        return work


class Settling(msgspec.Struct, frozen=True, gc=False):
    """One caller's acks of deliveries of one consumer.

    ``publishes`` are stored if (and only if) the acks take effect; None: the acks are all that was asked for.
    ``apart`` has the messages of each ack: dropped if that ack has no effect. It is ``durable`` if the caller is told
    so: else a power loss may undo it.
    """

    acks: Sequence[AckOp]
    future: Future
    publishes: Sequence[Outgoing] | None = None
    apart: Sequence[Sequence[Outgoing]] | None = None
    durable: bool = True


def settling_apart(endings: Sequence[Settled], future: Future) -> Settling:
    """Return the settling of many deliveries, each independent of the others."""
    return Settling([ending.ack for ending in endings], future, None, [ending.messages for ending in endings])


class SettleWork:
    """Acks of many callers, those of a consumer applied together; each caller's messages are stored with its acks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.durable: bool = False
        self._groups: dict[ConsumerKey, list[Settling]] = {}
        self._results: list[object] = []

    def add(self, consumer: ConsumerKey, entry: Settling) -> None:
        """Add one caller's acks."""
        self.durable = self.durable or entry.durable
        group = self._groups.get(consumer)
        if group is None:
            self._groups[consumer] = [entry]
        else:
            group.append(entry)

    @property
    def size(self) -> int:
        return sum(map(len, self._groups.values()))

    def run(self) -> None:
        """Apply the acks, and store the messages; the answer to each caller is a result or an error."""
        now = self._session.now()
        self._results = []
        for (stream, name), entries in self._groups.items():
            try:
                consumer = self._session.registry.consumer(stream, name)
            except PeltonError as error:
                self._results += [error] * len(entries)
                continue
            self._results += self._settle(self._session.registry.settlement(consumer, now), entries)

    def _settle(self, settlement: Settlement, entries: Sequence[Settling]) -> list[object]:
        if len(entries) == 1 and entries[0].publishes is None and entries[0].apart is None:
            return [settlement.of_acks_alone(settlement.run(entries[0].acks))]
        answers = settlement.run([ack for entry in entries for ack in entry.acks])
        alone = settlement.of_acks_alone(answers)
        results: list[object] = []
        start = 0
        for entry in entries:
            end = start + len(entry.acks)
            if entry.apart is not None:
                results.append(self._publish_apart(entry.apart, answers[start:end]))
            elif entry.publishes is None:
                results.append(alone[start:end])
            else:
                results.append(self._publish(entry.publishes, answers[start:end]))
            start = end
        return results

    def _publish(self, publishes: Sequence[Outgoing], answers: list[PeltonError | None]) -> object:
        if any(answers):
            return next(filter(None, answers))
        # A refused publish raises: the group is rolled back, and this entry alone fails, its ack undone.
        return all_stored(store(self._session, publishes, "until refused"))

    def _publish_apart(
        self, messages: Sequence[Sequence[Outgoing]], answers: list[PeltonError | None]
    ) -> list[PeltonError | None]:
        held = (each for each, refused in zip(messages, answers, strict=True) if refused is None)
        all_stored(store(self._session, list(chain.from_iterable(held)), "until refused"))
        return answers

    def finish(self) -> None:
        futures = [entry.future for entries in self._groups.values() for entry in entries]
        answer_all(futures, self._results)

    def fail(self, error: Exception) -> None:
        for entry in chain.from_iterable(self._groups.values()):
            answer(entry.future, public_error(error))

    def pieces(self) -> list[Work]:
        if self.size == 1:
            return [self]
        alone: list[Work] = []
        for consumer, entries in self._groups.items():
            for entry in entries:
                work = SettleWork(self._session)
                work.add(consumer, entry)
                alone.append(work)
        return alone


async def settle_all(
    stage: Callable[[Sequence[Settled]], Awaitable[list[PeltonError | None]]], endings: Sequence[Settled]
) -> list[PeltonError | None]:
    """Settle many deliveries in one transaction, or each alone if a message of one of them is refused."""
    try:
        return await stage(endings) if endings else []
    except (ApiError, ConfigError) as refused:
        if len(endings) == 1:
            return [refused]
    # The refusal rolled back all of them. Staged together, they still share the next transaction.
    alone = await asyncio.gather(*(stage([ending]) for ending in endings), return_exceptions=True)
    answers: list[PeltonError | None] = []
    for each in alone:
        if isinstance(each, ApiError | ConfigError):
            answers.append(each)
        elif isinstance(each, BaseException):
            raise each
        else:
            answers += each
    return answers


class Submissions:
    """The work of one engine's callers; ``door`` refuses those that may not submit any."""

    def __init__(self, session: Session, committer: Committer, door: Door) -> None:
        self._session = session
        self._committer = committer
        self._door = door
        self._loop = asyncio.get_running_loop()
        # Work that more may join, until the committer has begun it.
        self._publishing: PublishWork | None = None
        self._settling: SettleWork | None = None
        self._round = -1

    def _check(self) -> None:
        self._door.check()
        self._door.check_outside()

    def publish_one(self, message: Outgoing, future: Future) -> None:
        if running_loop() is not self._loop or self._door.entered:
            self._check()
        # Whatever else would refuse it refuses the work that it joins, or is met by the committer.
        if self._round != self._committer.rounds:
            # Nothing waits: probably it runs at once, and nothing joins it.
            self._waits(CallWork(future, partial(_store_one, self._session, message), durable=True))
        elif (work := self._publishing) is not None:
            work.add_one(message, future)
        else:
            work = PublishWork(self._session)
            work.add_one(message, future)
            if self._waits(work):
                self._publishing = work

    def publish(self, entry: Publishing) -> None:
        """Submit messages."""
        if running_loop() is not self._loop or self._door.entered:
            self._check()
        if self._round == self._committer.rounds and (work := self._publishing) is not None:
            work.add(entry)
            return
        work = PublishWork(self._session)
        work.add(entry)
        if self._waits(work):
            self._publishing = work

    def settle(self, consumer: ConsumerKey, entry: Settling, *, at_once: bool = True) -> None:
        """Submit acks of deliveries of a consumer."""
        if running_loop() is not self._loop or self._door.entered:
            self._check()
        if self._round == self._committer.rounds and (work := self._settling) is not None:
            work.add(consumer, entry)
            return
        work = SettleWork(self._session)
        work.add(consumer, entry)
        if self._waits(work, at_once=at_once):
            self._settling = work

    def call(self, call: Callable[[], object], future: Future, *, durable: bool, at_once: bool) -> None:
        """Submit a function, whose result is the answer."""
        self._door.check_outside()
        self._waits(CallWork(future, call, durable=durable), at_once=at_once)

    def _waits(self, work: Work, *, at_once: bool = True) -> bool:
        """Let work run, at once if it can; return whether it waits, so that others may join it."""
        committer = self._committer
        try:
            if not at_once:
                committer.stage(work)
            elif committer.run_now(work):
                return False
        except Fault as fault:
            raise public_error(fault) from None
        if self._round != committer.rounds:
            # What others could join has begun since.
            self._round, self._publishing, self._settling = committer.rounds, None, None
        return True
