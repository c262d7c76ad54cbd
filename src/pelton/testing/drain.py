"""Running a queue's jobs in tests: at once as they are enqueued, or when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from pelton.api import Cancel, ConfigError, Discard, JobCancelledError, RetryJob, Snooze
from pelton.api.times import Seconds
from pelton.engine import Engine
from pelton.queue import Queue
from pelton.queue.model.options import seconds
from pelton.runtime.loop_thread import loop_threads
from pelton.testing.clock import ManualClock, in_background

# What a job raises to say how it continues: decisions, not mistakes.
_DECISIONS = (RetryJob, Snooze, Cancel, Discard, JobCancelledError)
# The tasks that renew a lock or a term, on threads of their own. They begin, and go on, some rounds of the loop later.
_RENEWALS = {"pelton-renewal", "pelton election: ask"}
_ROUNDS = 20
_PATIENCE_S = 30.0
_LOOK_S = 0.002


async def drain(queue: Queue, *, within: Seconds = 0, raises: bool = True, concurrency: int = 1) -> None:
    """Run everything that is due in a queue, and what these jobs enqueue; return when nothing can start.

    With ``within`` (seconds), the manual clock is turned by that much, from one due time to the next: so retries and
    scheduled jobs run at theirs. ``concurrency`` is 1, so that tests see jobs one after another.

    Raises an ExceptionGroup of what jobs raised last that have not completed since (``raises=False``: not), and
    ConfigError for ``within`` without a manual clock. To raise RetryJob, Snooze, Cancel or Discard is no mistake.
    """
    errors: dict[str, BaseException] = {}
    left = seconds(f"drain of queue {queue.name!r}: within", within)
    probes = queue._context.probes
    probes.on_error, probes.on_idle = errors.__setitem__, _clock_turner(queue, left)
    try:
        with in_background():
            await queue.work(concurrency=concurrency, until_idle=True, handle_signals=False)
    finally:
        probes.on_error = probes.on_idle = None
    if raises:
        await _raise(queue, errors)


@contextmanager
def inline(queue: Queue) -> Iterator[None]:
    """Run jobs as they are enqueued: ``enqueue`` returns when they have ended, and raises what they raise.

    A job that is to start later, or whose attempt has failed, is left to :func:`drain`, as are jobs that are enqueued
    in a transaction. Of several errors at once, an ExceptionGroup is raised.
    """

    async def run() -> None:
        try:
            await drain(queue)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    probes = queue._context.probes
    probes.on_stored = run
    try:
        yield
    finally:
        probes.on_stored = None


def _clock_turner(queue: Queue, within: float) -> Callable[[float], bool] | None:
    """Return what turns the clock to the next due time whenever the queue's worker is idle, by ``within`` in all.

    Due is what the worker knows of, what the store makes (a delayed job, that of a schedule), and what else waits for
    the clock. None for a clock that goes on by itself. Raises ConfigError.
    """
    clock, backend = queue.jet.runtime.clock, queue.jet.backend
    if not isinstance(clock, ManualClock) or not isinstance(backend, Engine):
        if within:
            raise ConfigError("drain(within=...) turns the clock: open the store with pelton.testing.manual_runtime()")
        return None
    until = clock.monotonic() + within

    def turn(starts_in: float) -> bool:
        left = until - clock.monotonic()
        if left <= 0:
            return False
        # What is overdue is done now.
        clock.advance(0)
        _let_threads_catch_up()
        waits = [wait for wait in (left, starts_in, (backend.next_due() - clock.now()) / 1e9) if wait > 0]
        if (call := clock.next_call()) is not None:
            # What a thread has asked for meanwhile may be due now.
            waits.append(call)
        clock.advance(max(min(waits), 1e-9))
        return True

    return turn


def _let_threads_catch_up() -> None:
    """Wait until the threads that keep locks and terms have renewed what is due by now."""
    for thread in loop_threads():
        if not thread.is_here and not thread.is_blocked and thread.call_soon(_go_round, done := Event(), _ROUNDS):
            # One that blocks its loop before it comes to that has nothing to renew.
            tries = _PATIENCE_S / _LOOK_S
            while not done.wait(_LOOK_S) and not thread.is_blocked and tries > 0:
                tries -= 1


def _go_round(done: Event, rounds: int) -> None:
    loop = asyncio.get_running_loop()
    if any(task.get_name() in _RENEWALS for task in asyncio.all_tasks()):
        # It may wait for another thread that writes.
        loop.call_later(0.001, _go_round, done, _ROUNDS)
    elif rounds:
        loop.call_soon(_go_round, done, rounds - 1)
    else:
        done.set()


async def _raise(queue: Queue, errors: dict[str, BaseException]) -> None:
    raised = [
        error
        for job_id, error in errors.items()
        if not isinstance(error, _DECISIONS) and (await queue.get(job_id)).state != "completed"
    ]
    if raised:
        raise BaseExceptionGroup(f"jobs of queue {queue.name!r} raised", raised)
