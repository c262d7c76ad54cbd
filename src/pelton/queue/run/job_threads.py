"""Sync jobs on threads, and copies of a process that a job makes with ``os.fork()``.

**Copies of a process that a job makes with ``os.fork()``: each ends where it would come back from the job.** It has
everything that the process has: its jobs, its connections, its event loop. What it did with them, it would do in the
name of the other.

**Sync jobs on threads, which exchange lists with the event loop: jobs in one direction, their ends in the other.** A
thread takes one job after another until none is left, and the event loop is woken once for all that have ended since it
last looked. So quick jobs cost neither a thread nor a wake-up each. A thread that takes a job and leaves others calls
one more thread before it runs its own: slow jobs are soon all on threads.

No call is lost: ``_coming`` is cleared by a thread before it looks for jobs, and read after a job was added; the same
holds for ``_told`` and the ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakSet


class Copies:
    """Tells the process in which it was made from its copies. ``is_one``: this is a copy, which is to :meth:`end`."""

    def __init__(self) -> None:
        self.is_one: bool = False
        _all.add(self)

    def end(self, error: BaseException | None) -> None:
        """End a copy, as its program would that has returned, or raised ``error``."""
        if not self.is_one:
            return
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            with suppress(BaseException):
                traceback.print_exception(error)
        flush()
        os._exit(code & 0xFF)


_all: Final[WeakSet[Copies]] = WeakSet()


def _copied() -> None:
    for copies in list(_all):
        copies.is_one = True


os.register_at_fork(after_in_child=_copied)


def flush() -> None:
    """Write what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # A job may have closed or replaced it.
        with suppress(Exception):
            stream.flush()


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
