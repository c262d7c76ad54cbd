"""Settlements: acks of many callers, with the messages to publish if the acks take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, groupby
from typing import NamedTuple

from pelton.api import AckOp, ApiError, ConfigError, Outgoing, PeltonError, Settled
from pelton.consumers import Settlement
from pelton.engine.transactions.families import Family, families_of, store_families
from pelton.engine.transactions.works import Future, SharedWork, append_all


class Apart(NamedTuple):
    """The messages of each ack: dropped if the ack has no effect; ``families`` has the messages of all acks."""

    messages: Sequence[Sequence[Outgoing]]
    families: Sequence[Family]


class Settling(NamedTuple):
    """One caller's acks for a consumer, with messages to publish if (and only if) the acks take effect."""

    stream: str
    consumer: str
    acks: Sequence[AckOp]
    publishes: Sequence[Outgoing] | None
    future: Future
    apart: Apart | None = None


def settling_apart(stream: str, consumer: str, endings: Sequence[Settled], future: Future) -> Settling:
    """Return the settling of many deliveries, each independent of the others."""
    messages = [ending.messages for ending in endings]
    apart = Apart(messages, families_of(list(chain.from_iterable(messages))))
    return Settling(stream, consumer, [ending.ack for ending in endings], None, future, apart)


class SettleWork(SharedWork[Settling]):
    """Acks of many callers, applied together; each caller's messages are stored with its ack or not at all."""

    def run(self) -> None:
        now = self._now()
        self._results = [None] * len(self.entries)
        numbered = sorted(enumerate(self.entries), key=_consumer_of)
        for (stream, name), group in groupby(numbered, _consumer_of):
            self._settle(stream, name, list(group), now)

    def _settle(self, stream: str, name: str, group: list[tuple[int, Settling]], now: int) -> None:
        try:
            consumer = self._session.registry.consumer(stream, name)
        except PeltonError as error:
            for index, _ in group:
                self._results[index] = error
            return
        acks = [ack for _, entry in group for ack in entry.acks]
        settlement = Settlement(consumer, now, self._session.registry.interests.get(consumer.log))
        answers = settlement.run(acks)
        start = 0
        for index, entry in group:
            mine = answers[start : start + len(entry.acks)]
            start += len(entry.acks)
            if entry.apart is not None:
                self._results[index] = self._publish_apart(entry.apart, mine, now)
            elif entry.publishes is None:
                self._results[index] = settlement.of_acks_alone(mine)
            else:
                self._results[index] = self._publish(entry.publishes, mine, now)

    def _publish(self, publishes: Sequence[Outgoing], answers: list[PeltonError | None], now: int) -> object:
        if any(answers):
            return next(filter(None, answers))
        # A refused publish raises: the group is rolled back, and this entry alone fails, its ack undone.
        return append_all(self._session, publishes, now)

    def _publish_apart(self, apart: Apart, answers: list[PeltonError | None], now: int) -> list[PeltonError | None]:
        if not any(answers) and store_families(self._session, apart.families, now):
            return answers
        held = (publishes for publishes, refused in zip(apart.messages, answers, strict=True) if refused is None)
        append_all(self._session, [message for publishes in held for message in publishes], now)
        return answers


def _consumer_of(numbered: tuple[int, Settling]) -> tuple[str, str]:
    _, entry = numbered
    return entry.stream, entry.consumer


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
    for answer in alone:
        if isinstance(answer, ApiError | ConfigError):
            answers.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers += answer
    return answers
