"""A follower goes on after failures that pass, from what is there by then, and ends with those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from pelton.api import StoreBusyError, StoreClosedError
from pelton.jet.registers import Follower

Step = int | None | Exception


class Scene:
    """Streams that are opened one after another, and what a follower makes of them."""

    def __init__(self, *openings: Sequence[Step]) -> None:
        self.openings = list(openings)
        self.seen: list[int | None] = []
        self.failures: list[str] = []
        self.answers = self.closed = 0
        self.follower: Follower[int] = Follower(self._opened, self._saw, self._failed, self._answered)

    async def _opened(self) -> AsyncGenerator[int | None, None]:
        try:
            for step in self.openings.pop(0):
                if isinstance(step, Exception):
                    raise step
                yield step
            await asyncio.Event().wait()
        finally:
            self.closed += 1

    async def _saw(self, one: int | None) -> None:
        self.seen.append(one)

    async def _failed(self, error: Exception) -> None:
        if not isinstance(error, StoreBusyError):
            raise error
        self.failures.append(type(error).__name__)

    def _answered(self) -> None:
        self.answers += 1


BUSY, OVER = StoreBusyError("cars"), StoreClosedError("cars")


async def test_it_is_opened_again_until_it_fails_for_good() -> None:
    scene = Scene([1, None, 2, BUSY], [BUSY], [1, 2, None, 3, OVER])
    with pytest.raises(StoreClosedError):
        await scene.follower.follow()
    assert (scene.seen, scene.failures, scene.answers) == ([1, None, 2, 1, 2, None, 3], ["StoreBusyError"] * 2, 7)


async def test_it_goes_on_from_where_it_began() -> None:
    scene = Scene([1, None, 2, OVER])
    await scene.follower.begin()
    assert scene.seen == [1, None]
    with pytest.raises(StoreClosedError):
        await scene.follower.follow()
    assert scene.seen == [1, None, 2]


async def test_a_beginning_that_fails_leaves_nothing() -> None:
    scene = Scene([1, BUSY], [2, None, OVER])
    with pytest.raises(StoreBusyError):
        await scene.follower.begin()
    with pytest.raises(StoreClosedError):
        await scene.follower.follow()
    assert (scene.seen, scene.failures, scene.closed) == ([1, 2, None], [], 2)


async def test_what_was_begun_is_closed() -> None:
    scene = Scene([None])
    await scene.follower.begin()
    await scene.follower.close()
    await scene.follower.close()
    assert scene.closed == 1


async def test_cancelling_closes_what_is_followed() -> None:
    scene = Scene([None])
    following = asyncio.create_task(scene.follower.follow())
    while not scene.seen:
        await asyncio.sleep(0)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert (scene.closed, scene.failures) == (1, [])
