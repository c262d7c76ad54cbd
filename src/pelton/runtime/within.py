"""Waiting no longer than so many seconds of an injected clock."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pelton.runtime.clock import Clock

T = TypeVar("T")


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await something for at most so many seconds of ``clock``; then it is cancelled. Raises TimeoutError."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = clock.call_later(seconds, end)
    try:
        return await work
    except asyncio.CancelledError:
        if is_late and task.uncancel() <= before:
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
