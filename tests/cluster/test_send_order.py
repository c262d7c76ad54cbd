"""The order of sending, step by step, without a server."""

from __future__ import annotations

import asyncio

import pytest

from pelton.cluster.publisher import SendOrder


class Line:
    """A connection that a test opens and closes."""

    def __init__(self) -> None:
        self.order = SendOrder()
        self.sent: list[int] = []
        self.is_open = False
        self.changed = asyncio.Event()

    async def send(self, number: int) -> None:
        await self.order.send(number, lambda: self._attempt(number), self._ready)

    def _attempt(self, number: int) -> bool | None:
        if not self.is_open:
            return None
        self.sent.append(number)
        return True

    async def _ready(self) -> None:
        await self.changed.wait()

    def open(self) -> None:
        self.is_open = True
        self.changed.set()


async def _begun(line: Line, *numbers: int) -> list[asyncio.Task[None]]:
    tasks = []
    for number in numbers:
        tasks.append(asyncio.create_task(line.send(number)))
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 2, 1), (2, 3, 1, 4), (5, 1, 4, 2, 3)])
async def test_the_smallest_number_goes_first(numbers: tuple[int, ...]) -> None:
    line = Line()
    tasks = await _begun(line, *numbers)
    assert not line.order.is_free
    line.open()
    await asyncio.gather(*tasks)
    assert line.sent == sorted(numbers)
    assert line.order.is_free


@pytest.mark.parametrize("given_up", [0, 1, 2, 3])
async def test_one_that_is_given_up_hinders_nobody(given_up: int) -> None:
    line = Line()
    tasks = await _begun(line, 4, 2, 1, 3)
    left = sorted({1, 2, 3, 4} - {(4, 2, 1, 3)[given_up]})
    tasks[given_up].cancel()
    await asyncio.wait([tasks[given_up]])
    line.open()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert line.sent == left
    assert line.order.is_free


async def test_what_ends_the_wait_ends_it_for_one_alone() -> None:
    line = Line()

    async def fails() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await line.order.send(1, lambda: None, fails)
    assert line.order.is_free
    line.open()
    await line.send(2)
    assert line.sent == [2]
