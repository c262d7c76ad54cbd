"""Settlements: acks of many callers, with the messages to publish if the acks take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import msgspec

from pelton.api import AckOp, ApiError, ConfigError, Outgoing, PeltonError, Settled
from pelton.consumers import Settlement
from pelton.engine.faults import public_error
from pelton.engine.session import Session
from pelton.engine.transactions.works import Future, answer, answer_all, append_all
from pelton.storage import Work

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
