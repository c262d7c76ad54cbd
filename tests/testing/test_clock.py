"""The manual clock keeps the promises of a clock."""

import asyncio
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.runtime import Clock
from pelton.testing import ManualClock, manual_runtime

SECOND = 1_000_000_000


def test_it_is_a_clock_that_stands_still() -> None:
    clock: Clock = ManualClock(start_ns=5)
    assert (clock.now(), clock.monotonic()) == (5, 0.0)
    assert (clock.now(), clock.monotonic()) == (5, 0.0)


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 20)))
def test_timers_fire_in_order_at_their_time(delays: list[int], steps: list[int]) -> None:
    clock, fired = ManualClock(), list[tuple[float, int]]()

    def fire(number: int) -> None:
        fired.append((clock.monotonic(), number))

    for number, delay in enumerate(delays):
        clock.call_later(delay / 10, partial(fire, number))
    for step in steps:
        clock.advance(step / 10)
    reached = sum(steps)
    due = sorted((delay, number) for number, delay in enumerate(delays) if delay <= reached and steps)
    assert fired == [(delay / 10, number) for delay, number in due]


def test_timers_asked_for_on_the_way_fire_on_the_way() -> None:
    clock, fired = ManualClock(), list[float]()

    def tick() -> None:
        fired.append(clock.monotonic())
        clock.call_later(1, tick)

    clock.call_later(1, tick)
    clock.advance(3.5)
    assert fired == [1.0, 2.0, 3.0]
    assert clock.monotonic() == 3.5


def test_a_cancelled_timer_does_not_fire() -> None:
    clock = ManualClock()
    clock.call_later(1, pytest.fail).cancel()
    clock.advance(2)


def test_stepping_the_wall_clock_moves_nothing_else() -> None:
    clock, fired = ManualClock(start_ns=0), list[int]()
    clock.call_later(10, lambda: fired.append(clock.now()))
    clock.advance(4)
    clock.set_wall(1000 * SECOND)
    assert (clock.now(), clock.monotonic(), fired) == (1000 * SECOND, 4.0, [])
    clock.advance(6)
    assert fired == [1006 * SECOND]


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="set_wall"):
        ManualClock().advance(-1)


async def test_sleep_ends_when_the_clock_arrives() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(5))
    await clock.sleep(0)
    clock.advance(4.999)
    await clock.sleep(0)
    assert not sleeper.done()
    clock.advance(0.001)
    await sleeper


async def test_a_sleeper_may_be_cancelled_just_before_its_time() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.sleep(0)
    sleeper.cancel()
    clock.advance(1)
    with pytest.raises(asyncio.CancelledError):
        await sleeper


def test_equal_seeds_give_equal_runs() -> None:
    one, same, other = manual_runtime(1), manual_runtime(1), manual_runtime(2)
    assert (one.ids.new(), one.random.random()) == (same.ids.new(), same.random.random())
    assert one.ids.new() != other.ids.new()


def test_a_call_of_another_thread_s_loop_is_made_there() -> None:
    clock = ManualClock()
    waiting, called_on = threading.Event(), list[int]()

    async def wait() -> None:
        clock.call_later(5, lambda: called_on.append(threading.get_ident()))
        asleep = asyncio.create_task(clock.sleep(5))
        await asyncio.sleep(0)
        waiting.set()
        await asleep

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    assert waiting.wait(5)
    clock.advance(5)
    thread.join(5)
    assert not thread.is_alive()
    assert called_on == [thread.ident]
