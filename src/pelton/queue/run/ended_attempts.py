"""The ended attempts of a worker, which are settled together.

A single one, and one that is refused in a group, is settled alone (``JobAttempt.settle``), which retries while the
store is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pelton.api import PeltonError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.queue.model.records import Ended

if TYPE_CHECKING:
    from pelton.queue.ports import JobSource
    from pelton.queue.run.attempt import JobAttempt


class EndedAttempts:
    """Attempts to be settled. ``done`` is called once with each of them, whatever the result."""

    def __init__(self, job_source: JobSource, done: Callable[[Sequence[JobAttempt]], None]) -> None:
        self._job_source = job_source
        self._done = done
        self._ended: dict[JobAttempt, Ended] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, attempt: JobAttempt, ended: Ended) -> None:
        """Add an attempt with how it ended."""
        self._ended[attempt] = ended

    async def settle(self) -> None:
        """Settle all attempts that have ended so far."""
        taken, self._ended = self._ended, {}
        by_consumer: dict[str, dict[JobAttempt, Ended]] = {}
        for attempt, ended in taken.items():
            by_consumer.setdefault(ended.delivered.consumer, {})[attempt] = ended
        if len(by_consumer) == 1:
            await self._settle(taken)
        else:
            await _all(self._settle(ended) for ended in by_consumer.values())

    async def _settle(self, left: dict[JobAttempt, Ended]) -> None:
        try:
            held = {attempt: ended for attempt, ended in left.items() if not attempt.is_lost}
            if len(held) == 1:
                [(attempt, ended)] = held.items()
                await attempt.settle(ended)
                return
            answers = await self._try(list(held.values()))
            refused = {attempt: error for attempt, error in zip(held, answers, strict=True) if error is not None}
            self._let_go(left, [attempt for attempt in held if attempt not in refused])
            await _all(self._settle_alone(left, attempt, error) for attempt, error in refused.items())
        finally:
            self._let_go(left, list(left))

    async def _try(self, endings: Sequence[Ended]) -> Sequence[PeltonError | None]:
        try:
            return await self._job_source.settle_many(endings) if endings else []
        except FINAL_ERRORS:
            raise
        except PeltonError as error:
            return [error] * len(endings)

    async def _settle_alone(self, left: dict[JobAttempt, Ended], attempt: JobAttempt, refused: PeltonError) -> None:
        await attempt.settle(left[attempt], refused)
        self._let_go(left, [attempt])

    def _let_go(self, left: dict[JobAttempt, Ended], attempts: Sequence[JobAttempt]) -> None:
        for attempt in attempts:
            del left[attempt]
        if attempts:
            self._done(attempts)


async def _all(tries: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all to their ends, then raise what one of them has raised."""
    for answer in await asyncio.gather(*tries, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
