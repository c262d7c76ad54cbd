"""Loops stand still at a moment when nothing is in use, and go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pelton.runtime import LoopThread, Standstill


@pytest.fixture
def ticking() -> Iterator[list[int]]:
    ticks: list[int] = []
    end = threading.Event()

    async def tick() -> None:
        while not end.is_set():
            ticks.append(0)
            await asyncio.sleep(0)

    thread = LoopThread(tick, "ticking")
    thread.start()
    yield ticks
    end.set()
    thread.join()


def test_a_loop_stands_still_and_goes_on(ticking: list[int]) -> None:
    standstill = Standstill()
    answers = iter([False, False, True])
    standstill.begin(lambda: next(answers))
    seen = len(ticking)
    assert next(answers, None) is None
    threading.Event().wait(0.02)
    assert len(ticking) == seen
    standstill.end()
    while len(ticking) == seen:
        pass
    standstill.end()  # one that has not begun


def test_what_is_never_idle_is_not_waited_for_long(ticking: list[int]) -> None:
    standstill = Standstill()
    standstill.begin(lambda: False)
    seen = len(ticking)
    while len(ticking) == seen:
        pass
    standstill.end()


def test_one_after_the_other(ticking: list[int]) -> None:
    standstill = Standstill()
    standstill.begin(lambda: True)
    begun = threading.Event()

    def another() -> None:
        standstill.begin(lambda: True)
        begun.set()
        standstill.end()

    thread = threading.Thread(target=another)
    thread.start()
    assert not begun.wait(0.02)
    standstill.end()
    thread.join()
    assert begun.is_set()


def test_a_loop_that_is_blocked_is_not_waited_for_and_stays_so() -> None:
    go, seen = threading.Event(), threading.Event()

    async def block() -> None:
        assert await thread.block(go, 60)
        seen.set()

    thread = LoopThread(block, "blocked")
    thread.start()
    while not thread.is_blocked:
        pass
    standstill = Standstill()
    standstill.begin(lambda: True)
    go.set()
    assert not seen.wait(0.02)
    standstill.end()
    thread.join()
    assert seen.is_set()
