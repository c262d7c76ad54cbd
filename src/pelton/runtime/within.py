"""Waiting with a time limit on an injected clock (for a signal: ``Signal.wait_at_most``)."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pelton.runtime.clock import Clock

T = TypeVar("T")


class Deadline:
    """A deadline some seconds after its creation; None: never."""

    __slots__ = ("_clock", "_end")

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        """Start to count."""
        self._clock = clock
        self._end = None if seconds is None else clock.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """The seconds left, at least 0; None: for ever."""
        return None if self._end is None else max(self._end - self._clock.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and self._clock.monotonic() >= self._end


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await something for at most ``seconds`` of ``clock``; then it is cancelled. Raises TimeoutError."""
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
        answer = await work
    except asyncio.CancelledError:
        if is_late and task.uncancel() <= before:
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    if is_late:
        # It came at the same moment, and was preferred to the cancellation.
        task.uncancel()
    return answer


async def interruptible(work: Awaitable[T]) -> T:
    """Await something that may swallow a cancellation; it is raised afterwards.

    ``asyncio.wait_for`` does before Python 3.12, if what it waits for is there at the same moment. Who cancels a task
    once and waits for its end would wait for ever.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    answer = await work
    if task.cancelling() > before:
        raise asyncio.CancelledError
    return answer
