"""Sync jobs on threads, which exchange lists with the event loop: jobs in one direction, their ends in the other.

Design: A thread takes one job after another until none is left, and the event loop is woken once for all that have
ended since it last looked. So quick jobs cost neither a thread nor a wake-up each. A thread that takes a job and
leaves others calls one more thread before it runs its own: slow jobs are soon all on threads.

No call is lost: ``_coming`` is cleared by a thread before it looks for jobs, and read after a job was added; the same
holds for ``_told`` and the ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from pelton.queue.run.copies import Copies

T = TypeVar("T")


class Called(NamedTuple, Generic[T]):
    """What a call on a thread has returned or raised; ``error`` is None if it has returned."""

    job: T
    result: object
    error: BaseException | None


class JobThreads(Generic[T]):
    """Up to ``limit`` threads for the jobs of one worker. ``done`` is called on the event loop."""

    def __init__(self, limit: int, done: Callable[[list[Called[T]]], None]) -> None:
        self._limit = limit
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._todo: deque[tuple[T, Callable[[], object]]] = deque()
        self._ended: deque[Called[T]] = deque()
        self._coming = False
        self._told = False
        self._executor: ThreadPoolExecutor | None = None
        self._copies = Copies()

    def run(self, job: T, call: Callable[[], object]) -> None:
        """Run a job's call on a thread."""
        self._todo.append((job, call))
        if not self._coming:
            self._call_another()

    def close(self, *, wait: bool) -> None:
        """End the threads; ``wait`` for jobs that still run."""
        if self._executor is not None:
            self._executor.shutdown(wait=wait)

    def _call_another(self) -> None:
        self._coming = True
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._limit, thread_name_prefix="pelton-job")
        with suppress(RuntimeError):
            # The threads were ended: the worker was cancelled, and nobody waits for the jobs that are left.
            self._executor.submit(self._work)

    # --- on the threads

    def _work(self) -> None:
        self._coming = False
        while True:
            try:
                job, call = self._todo.popleft()
            except IndexError:
                return
            if self._todo and not self._coming:
                self._call_another()
            called = _called(job, call)
            if self._copies.is_one:
                self._copies.end(called.error)
            self._ended.append(called)
            # Otherwise a finished job would be kept alive for as long as the thread waits, or the next one takes.
            del job, call, called
            if not self._told:
                self._told = True
                with suppress(RuntimeError):
                    # The loop is closed: nobody waits for this job either.
                    self._loop.call_soon_threadsafe(self._tell)

    # --- on the event loop

    def _tell(self) -> None:
        self._told = False
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if ended:
            self._done(ended)


def _called(job: T, call: Callable[[], object]) -> Called[T]:
    try:
        return Called(job, call(), None)
    except BaseException as error:  # whatever a job raises is its outcome
        return Called(job, None, error)
