"""Loops that put load on a contender and time it. Warm-up time is never counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter

PAYLOAD = b"\xb7" * 128
SUBJECT = "bench.a"
FILTER = "bench.>"
WINDOW = 1_000
BATCH = 1_000
FETCH = 256

Operation = Callable[[], Awaitable[object]]
_WARM_UP = 0.15


async def one_by_one(seconds: float, operation: Operation, each: int = 1) -> float:
    """Return operations per second, each awaited before the next; one call counts as `each` operations."""
    await _repeat(seconds * _WARM_UP, operation)
    done, elapsed = await _repeat(seconds, operation)
    return done * each / elapsed


async def in_flight(seconds: float, operation: Operation, window: int = WINDOW) -> float:
    """Return operations per second with `window` of them in flight at all times."""
    await _crowd(seconds * _WARM_UP, operation, window)
    done, elapsed = await _crowd(seconds, operation, window)
    return done / elapsed


async def _repeat(seconds: float, operation: Operation) -> tuple[int, float]:
    done, start = 0, perf_counter()
    deadline = start + seconds
    while perf_counter() < deadline:
        await operation()
        done += 1
    return done, perf_counter() - start


async def _crowd(seconds: float, operation: Operation, window: int) -> tuple[int, float]:
    start = perf_counter()
    counts = await asyncio.gather(*(_repeat(seconds, operation) for _ in range(window)))
    return sum(done for done, _ in counts), perf_counter() - start


def sync_one_by_one(seconds: float, operation: Callable[[], object], each: int = 1) -> float:
    """Do the same as `one_by_one`, for code without an event loop."""
    _sync_repeat(seconds * _WARM_UP, operation)
    done, elapsed = _sync_repeat(seconds, operation)
    return done * each / elapsed


def _sync_repeat(seconds: float, operation: Callable[[], object]) -> tuple[int, float]:
    done, start = 0, perf_counter()
    deadline = start + seconds
    while perf_counter() < deadline:
        operation()
        done += 1
    return done, perf_counter() - start


@dataclass
class JobTimes:
    """When a batch of jobs was begun, completely enqueued, and finished."""

    begun: float
    enqueued: float
    finished: float

    def rates(self, total: int) -> dict[str, float]:
        """Return jobs per second from the first enqueue to the last job's end, and from the last enqueue on."""
        return {"rate": total / (self.finished - self.begun), "drain": total / (self.finished - self.enqueued)}


async def drained(total: int, step: Callable[[], Awaitable[int]]) -> float:
    """Return messages per second until `step`, which returns how many it finished, has finished `total`."""
    start, left = perf_counter(), total
    while left > 0:
        left -= await step()
    return total / (perf_counter() - start)
