"""No wake-up is lost, whenever it comes."""

import asyncio

import pytest

from pelton.runtime import Signal


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
