"""Collects what callers submit for the shared transaction: settlements with the messages to publish, and others.

**Collects what callers submit for the shared transaction.** Publishes of one round of the event loop join one piece of
work, acks and settlements another, until the transaction that runs them begins. Work of a single caller runs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any

import msgspec

from pelton.api import AckOp, ApiError, ConfigError, Delivered, Outgoing, PeltonError, Settled
from pelton.consumers import Settlement
from pelton.engine.faults import public_error
from pelton.engine.session import Session
from pelton.engine.transactions.transactions import Transactions
from pelton.engine.transactions.works import CallWork, Future, Publishing, PublishWork, answer, answer_all, append_all
from pelton.runtime import running_loop
from pelton.storage import Committer, Fault, Work

ConsumerKey = tuple[str, str]
"""A consumer, by the name of its stream and its own name."""


class Settling(msgspec.Struct, frozen=True, gc=False):
    """One caller's acks of deliveries of one consumer.

    ``publishes`` are stored if (and only if) the acks take effect; None: the acks are all that was asked for.
    ``apart`` has the messages of each ack: dropped if that ack has no effect.
    """

    acks: Sequence[AckOp]
    future: Future
    publishes: Sequence[Outgoing] | None = None
    apart: Sequence[Sequence[Outgoing]] | None = None


def settling_apart(endings: Sequence[Settled], future: Future) -> Settling:
    """Return the settling of many deliveries, each independent of the others."""
    return Settling([ending.ack for ending in endings], future, None, [ending.messages for ending in endings])


class SettleWork:
    """Acks of many callers, those of a consumer applied together; each caller's messages are stored with its acks."""

    durable = True

    def __init__(self, session: Session, now: Callable[[], int]) -> None:
        self._session = session
        self._now = now
        self._groups: dict[ConsumerKey, list[Settling]] = {}
        self._results: list[object] = []

    def add(self, consumer: ConsumerKey, entry: Settling) -> None:
        """Add one caller's acks."""
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
        now = self._now()
        self._results = []
        for (stream, name), entries in self._groups.items():
            try:
                consumer = self._session.registry.consumer(stream, name)
            except PeltonError as error:
                self._results += [error] * len(entries)
                continue
            settlement = Settlement(consumer, now, self._session.registry.interests.get(consumer.log))
            self._results += self._settle(settlement, entries, now)

    def _settle(self, settlement: Settlement, entries: Sequence[Settling], now: int) -> list[object]:
        answers = settlement.run([ack for entry in entries for ack in entry.acks])
        alone = settlement.of_acks_alone(answers)
        results: list[object] = []
        start = 0
        for entry in entries:
            end = start + len(entry.acks)
            if entry.apart is not None:
                results.append(self._publish_apart(entry.apart, answers[start:end], now))
            elif entry.publishes is None:
                results.append(alone[start:end])
            else:
                results.append(self._publish(entry.publishes, answers[start:end], now))
            start = end
        return results

    def _publish(self, publishes: Sequence[Outgoing], answers: list[PeltonError | None], now: int) -> object:
        if any(answers):
            return next(filter(None, answers))
        # A refused publish raises: the group is rolled back, and this entry alone fails, its ack undone.
        return append_all(self._session, publishes, now)

    def _publish_apart(
        self, messages: Sequence[Sequence[Outgoing]], answers: list[PeltonError | None], now: int
    ) -> list[PeltonError | None]:
        held = (each for each, refused in zip(messages, answers, strict=True) if refused is None)
        append_all(self._session, list(chain.from_iterable(held)), now)
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
                work = SettleWork(self._session, self._now)
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
    """The work of one engine's callers. ``check`` raises an error if the store cannot be used."""

    def __init__(
        self, session: Session, committer: Committer, transactions: Transactions, check: Callable[[], None]
    ) -> None:
        self._session = session
        self._committer = committer
        self._check = check
        self._transactions = transactions
        self._check_outside = transactions.check_outside
        self._loop = asyncio.get_running_loop()
        self._publishing: PublishWork | None = None
        self._settling: SettleWork | None = None

    def part(self) -> None:
        """Let later submissions start new work: the submitted work runs now, or failed before it ran."""
        self._publishing = self._settling = None

    def publish_one(self, message: Outgoing, future: Future) -> None:
        """Submit a message."""
        work = self._publishing
        if work is not None and running_loop() is self._loop and not self._transactions.entered:
            # Whatever else would refuse it refuses all of this work.
            work.add_one(message, future)
            return
        self._check()
        self._check_outside()
        if work is None:
            work = PublishWork(self._session, self._session.now)
            work.add_one(message, future)
            self._begin(work)
        else:
            work.add_one(message, future)

    def publish(self, entry: Publishing) -> None:
        """Submit messages."""
        self._check()
        self._check_outside()
        work = self._publishing
        if work is None:
            work = PublishWork(self._session, self._session.now)
            work.add(entry)
            self._begin(work)
        else:
            work.add(entry)

    def _begin(self, work: PublishWork) -> None:
        if not self._committer.run_now(work):
            self._publishing = work

    def settle(self, consumer: ConsumerKey, entry: Settling, *, at_once: bool = True) -> None:
        """Submit acks of deliveries of a consumer."""
        work = self._settling
        if work is not None and running_loop() is self._loop and not self._transactions.entered:
            work.add(consumer, entry)
            return
        self._check()
        self._check_outside()
        if work is None:
            work = SettleWork(self._session, self._session.now)
            work.add(consumer, entry)
            if not at_once:
                self._committer.stage(work)
            if not (at_once and self._committer.run_now(work)):
                self._settling = work
        else:
            work.add(consumer, entry)

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]:
        """Submit a function; return the future of its result."""
        self._check_outside()
        future: asyncio.Future[Any] = self._loop.create_future()
        work = CallWork(future, call, durable=durable)
        try:
            if at_once:
                self._committer.run_now(work)
            else:
                self._committer.stage(work)
        except Fault as fault:
            raise public_error(fault) from None
        return future

    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None:
        """Nak what was delivered to a pull that was cancelled at the same moment."""
        acks = [AckOp(kind="nak", seq=one.seq, consumer_seq=one.consumer_seq, token=one.token) for one in delivered]
        if acks:
            future = self._loop.create_future()
            # Ignore errors: a message that cannot be given back is redelivered after its ack wait.
            future.add_done_callback(lambda done: done.exception())
            self.settle((stream, consumer), Settling(acks, future))
