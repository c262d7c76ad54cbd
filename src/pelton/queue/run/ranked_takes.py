"""Taking jobs in the order of their priorities, for the worker and for claims.

Design: ``model/rank_turns.py`` decides whose turn it is. While jobs without a priority keep a worker busy, it asks the
other channels every few milliseconds, or, if no job with a priority is stored, only from time to time whether one is.
While it has nothing to do, a pull waits on each channel. So a queue without priorities pays nothing for them. Jobs with
a tenant come through the same channels, and are waited for by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pelton.api import PeltonError, PullRequest
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.outage import ASK_AGAIN_S
from pelton.queue.model.rank_turns import RankTurn, RankTurns
from pelton.queue.run.core import HeldJob, HeldJobs
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.runtime import Runtime

_log: Final = logging.getLogger("pelton.queue")
J = TypeVar("J", bound=HeldJob)


class RankedTakes(Generic[J]):
    """Takes jobs that are there, the highest priority first."""

    def __init__(self, held: HeldJobs[J], runtime: Runtime) -> None:
        self._held = held
        self._clock = runtime.clock
        self._random = runtime.random
        self._has_drawn = False
        self.turns: RankTurns = RankTurns(held.source.ranked, held.source.channels)

    async def now(self, channel: str, most: int) -> list[J]:
        """Take up to so many jobs of a channel, or jobs with a priority; none only if there are none of both."""
        is_sure = False
        while True:
            is_sure = await self.look() or is_sure
            now = self._clock.boottime()
            turn = self.turns.next(channel, most, now)
            found = await self.ask(turn)
            if found or (turn.waits and is_sure):
                return found
            if turn.waits:
                # What has come since.
                self.turns.doubt()

    async def look(self) -> bool:
        """Find out whether there are jobs with a priority, if that may have changed; return whether it was done."""
        now = self._clock.boottime()
        if not self.turns.is_unsure(now):
            return False
        has_ranked = await self._held.source.has_ranked()
        if not self._has_drawn:
            self._has_drawn = True
            if not self._held.source.is_new:
                self.turns.draw(self._random)
        self.turns.learned(has_ranked, now)
        return True

    async def ask(self, turn: RankTurn) -> list[J]:
        """Take up to so many jobs that a channel has now whose turn it is."""
        found = await self._held.take(turn.channel, PullRequest(batch=turn.most, no_wait=True))
        self.turns.answered(turn.channel, len(found), self._clock.boottime(), is_below=turn.is_below)
        return found


class RankedFetcher(Generic[J]):
    """Takes jobs for a worker, and waits for them.

    ``wanted`` returns how many jobs the worker wants now, ``changed`` is notified when that changes; ``request`` makes
    the request of a pull that waits for so many; ``accept`` is given jobs that came while all channels waited, and
    when they were asked for.
    """

    def __init__(
        self,
        held: HeldJobs[J],
        runtime: Runtime,
        wanted: Callable[[], int],
        changed: Signal,
        request: Callable[[int], PullRequest],
        accept: Callable[[list[J], float], Awaitable[None]],
    ) -> None:
        self.takes: RankedTakes[J] = RankedTakes(held, runtime)
        self._turns = self.takes.turns
        self._held = held
        self._runtime = runtime
        self._clock = runtime.clock
        self._wanted = wanted
        self._changed = changed
        # Fetchers ask one after the other: what the first has got counts for the next.
        self._one = asyncio.Lock()
        self._request = request
        self._accept = accept
        self._channels, self._ranked = held.source.channels, held.source.ranked
        # Each channel that is waited for here, and the one from which its jobs are taken.
        self._awaited = {**dict(zip(self._ranked, self._ranked, strict=True)), **held.source.tenants}
        # Channels that had more than was taken, or that were not asked yet; and those that are waited for.
        self._rich = set(self._channels)
        self._waiting: set[str] = set()
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._wake = Signal()

    # --- for the fetchers of the other channels

    async def now(self, channel: str) -> list[J] | None:
        """Take jobs of a channel, or with a priority; none if there are none of both. None: none are wanted now."""
        async with self._one:
            wanted = self._wanted()
            return await self.takes.now(channel, wanted) if wanted > 0 else None

    async def take(self, channel: str, wanted: int) -> list[J]:
        """Take jobs of a channel, waiting for them, or those with a priority if it is their turn: maybe none."""
        await self.takes.look()
        if not self._turns.next(channel, wanted, self._clock.boottime()).waits:
            async with self._one:
                wanted = self._wanted()
                turn = self._turns.next(channel, wanted, self._clock.boottime())
                return [] if turn.waits or wanted <= 0 else await self.takes.ask(turn)
        if channel in self._rich:
            found = self._note(channel, await self._held.take(channel, PullRequest(batch=wanted, no_wait=True)))
            if found:
                return found
        self._waiting.add(channel)
        if len(self._pulls) < len(self._awaited):
            self._wake.notify()
        try:
            return self._note(channel, await self._held.take(channel, self._request(wanted)))
        finally:
            self._waiting.discard(channel)

    def _note(self, channel: str, found: list[J]) -> list[J]:
        if found and found[-1].records.delivered.num_pending:
            self._rich.add(channel)
        else:
            self._rich.discard(channel)
        return found

    # --- while all of them wait

    async def run(self) -> None:
        """Fetch jobs with a priority while the other channels wait, for ever."""
        try:
            while True:
                seen = self._wake.generation
                self._check_pulls()
                if not (self._is_idle and await self._fetch(await self._room())):
                    await self._wake.wait(seen)
        finally:
            for pull in self._pulls.values():
                pull.cancel()
            await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    async def _room(self) -> int:
        """Wait until jobs are wanted, and return how many."""
        while (wanted := self._wanted()) <= 0:
            await self._changed.wait(self._changed.generation)
        return wanted

    @property
    def _is_idle(self) -> bool:
        return len(self._waiting) == len(self._channels)

    async def _fetch(self, wanted: int) -> bool:
        """Ask the channel whose turn it is; if none can have any, wait for all, and return False."""
        turn = self._turns.next("", wanted, self._clock.boottime())
        if not turn.waits:
            await self._take_from(turn.channel, lambda: self.takes.ask(turn))
        elif self._is_idle:
            self._wait_for_all(wanted)
        return not turn.waits

    def _wait_for_all(self, wanted: int) -> None:
        for name in self._awaited:
            if name not in self._pulls:
                if name in self._ranked:
                    self._turns.awaits(name)
                pull = self._runtime.spawn(self._wait_for(name, wanted), f"pelton waits for {name}")
                pull.add_done_callback(lambda _: self._wake.notify())
                self._pulls[name] = pull

    async def _wait_for(self, channel: str, wanted: int) -> None:
        async def taken() -> list[J]:
            found: list[J] = []
            try:
                found = await self._held.take(channel, self._request(wanted))
            finally:
                if found or channel in self._ranked:
                    self._turns.answered(self._awaited[channel], len(found), self._clock.boottime())
            return found

        await self._take_from(channel, taken)

    async def _take_from(self, channel: str, take: Callable[[], Awaitable[list[J]]]) -> None:
        asked = self._clock.boottime()
        try:
            found = await take()
            if found:
                await self._accept(found, asked)
        except FINAL_ERRORS:
            raise
        except PeltonError as error:
            # The fetchers of the other channels meet it, too, and end the worker if it can't pass.
            _log.debug("no jobs can be taken from %s: %s", channel, error)
            await self._clock.sleep(ASK_AGAIN_S)

    def _check_pulls(self) -> None:
        for name, pull in list(self._pulls.items()):
            if pull.done():
                del self._pulls[name]
                pull.result()
