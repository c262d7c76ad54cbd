"""No wake-up is lost, whenever it comes."""

import asyncio

import pytest

from pelton.runtime import Signal
from pelton.testing import ManualClock


async def _until_blocked() -> None:
    """Let every ready task run to its next wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_notification_before_the_wait_is_not_lost() -> None:
    signal = Signal()
    seen = signal.generation
    signal.notify()
    assert await signal.wait(seen) == seen + 1


async def test_all_waiters_wake() -> None:
    signal = Signal()
    waiters = [asyncio.create_task(signal.wait(signal.generation)) for _ in range(5)]
    await _until_blocked()
    assert not any(waiter.done() for waiter in waiters)
    signal.notify()
    assert await asyncio.gather(*waiters) == [1] * 5


async def test_without_a_generation_only_the_next_notification_counts() -> None:
    signal = Signal()
    signal.notify()
    waiter = asyncio.create_task(signal.wait())
    await _until_blocked()
    assert not waiter.done()
    signal.notify()
    assert await waiter == 2


async def test_notifications_between_wake_up_and_resumption_are_in_the_generation() -> None:
    signal = Signal()
    waiter = asyncio.create_task(signal.wait(0))
    await _until_blocked()
    signal.notify()
    signal.notify()
    assert await waiter == 2


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    signal = Signal()
    gone, stays = (asyncio.create_task(signal.wait(0)) for _ in range(2))
    await _until_blocked()
    gone.cancel()
    signal.notify()
    assert await stays == 1
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not signal._waiters


async def test_a_wait_ends_at_its_deadline_and_wakes_nobody_else() -> None:
    signal, clock = Signal(), ManualClock()
    bounded = asyncio.create_task(signal.wait_at_most(clock, 5.0, 0))
    endless = asyncio.create_task(signal.wait_at_most(clock, None, 0))
    await _until_blocked()
    clock.advance(4.9)
    assert not bounded.done()
    clock.advance(0.1)
    assert await bounded == 0
    assert not endless.done()
    signal.notify()
    assert await endless == 1


async def test_what_comes_before_the_deadline_ends_the_wait() -> None:
    signal, clock = Signal(), ManualClock()
    waiter = asyncio.create_task(signal.wait_at_most(clock, 5.0, 0))
    await _until_blocked()
    signal.notify()
    assert await waiter == 1
    assert await signal.wait_at_most(clock, 5.0, 0) == 1
    clock.advance(10.0)


async def test_a_cancelled_wait_with_a_deadline_leaves_nothing_behind() -> None:
    signal, clock = Signal(), ManualClock()
    waiter = asyncio.create_task(signal.wait_at_most(clock, 5.0, 0))
    await _until_blocked()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert not signal._waiters
    clock.advance(10.0)
