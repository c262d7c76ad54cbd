"""Time limits: the work is cancelled, and a cancellation of the waiter is distinguished."""

import asyncio

import pytest

from pelton.runtime import Deadline, interruptible, within
from pelton.testing import ManualClock


async def _answer(after: ManualClock, seconds: float) -> str:
    await after.sleep(seconds)
    return "done"


async def _until_blocked() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_is_done_in_time_is_returned() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(within(clock, 5.0, _answer(clock, 4.0)))
    await _until_blocked()
    clock.advance(4.0)
    assert await waiting == "done"
    clock.advance(10.0)


async def test_what_is_late_is_cancelled() -> None:
    clock, ended = ManualClock(), list[str]()

    async def work() -> None:
        try:
            await _answer(clock, 6.0)
        finally:
            ended.append("work")

    waiting = asyncio.create_task(within(clock, 5.0, work()))
    await _until_blocked()
    clock.advance(5.0)
    with pytest.raises(TimeoutError, match="no answer within 5 s"):
        await waiting
    assert ended == ["work"]


async def test_an_error_of_the_work_passes_through() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(ManualClock(), 5.0, work())


async def test_whoever_cancels_the_waiter_cancels_it() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(within(clock, 5.0, _answer(clock, 6.0)))
    await _until_blocked()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    clock.advance(10.0)


async def test_a_cancellation_that_comes_with_the_deadline_is_not_lost() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(within(clock, 5.0, _answer(clock, 6.0)))
    await _until_blocked()
    clock.advance(5.0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()


async def test_one_within_another_ends_with_whichever_is_first() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(within(clock, 3.0, within(clock, 5.0, _answer(clock, 6.0))))
    await _until_blocked()
    clock.advance(3.0)
    with pytest.raises(TimeoutError, match="within 3 s"):
        await waiting


def test_a_deadline_counts_down_to_zero() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, 5.0)
    assert (deadline.left, deadline.is_over) == (5.0, False)
    clock.advance(4.0)
    assert (deadline.left, deadline.is_over) == (1.0, False)
    clock.advance(2.0)
    assert (deadline.left, deadline.is_over) == (0.0, True)
    assert Deadline(clock, 0.0).is_over


def test_without_seconds_there_is_no_end() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, None)
    clock.advance(1e9)
    assert (deadline.left, deadline.is_over) == (None, False)


async def _stubborn(answer: asyncio.Event) -> str:
    """Prefer an answer to a cancellation, as ``asyncio.wait_for`` did."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not answer.is_set():
            raise
    return "done"


async def test_a_cancellation_that_was_swallowed_is_raised_afterwards() -> None:
    answer = asyncio.Event()
    answer.set()
    waiting = asyncio.create_task(interruptible(_stubborn(answer)))
    await _until_blocked()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_whoever_cleans_up_after_a_cancellation_may_wait() -> None:
    cleaned = list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(await interruptible(_answer(ManualClock(), 0)))

    waiting = asyncio.create_task(work())
    await _until_blocked()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cleaned == ["done"]


async def test_an_answer_that_comes_with_the_deadline_leaves_no_cancellation_behind() -> None:
    clock, answer = ManualClock(), asyncio.Event()
    answer.set()
    task = asyncio.current_task()
    assert task is not None

    async def turn() -> None:
        await _until_blocked()
        clock.advance(5.0)

    turning = asyncio.create_task(turn())
    assert await within(clock, 5.0, _stubborn(answer)) == "done"
    await turning
    assert task.cancelling() == 0
