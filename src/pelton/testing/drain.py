"""Running a queue's jobs in tests: at once as they are enqueued, or when the test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pelton.api import ConfigError, JobCancelledError, RetryJob
from pelton.api.times import Seconds
from pelton.queue import Queue
from pelton.queue.model.checks import seconds
from pelton.testing.clock import ManualClock

# What a job raises to say how it goes on: decisions, not mistakes.
_DECISIONS = (RetryJob, JobCancelledError)


async def drain(queue: Queue, *, within: Seconds = 0, raises: bool = True, concurrency: int = 1) -> None:
    """Run everything that is due in a queue, and what these jobs enqueue; return when nothing can start.

    With ``within`` (seconds), the manual clock is turned by that much, from one due time to the next: so retries and
    scheduled jobs run at theirs. ``concurrency`` is 1, so that tests see jobs one after another.

    Raises an ExceptionGroup of what jobs raised last that have not completed since (``raises=False``: not), and
    ConfigError for ``within`` without a manual clock. To raise RetryJob or JobCancelledError is no mistake.
    """
    errors: dict[str, BaseException] = {}
    queue.observe(errors.__setitem__, queue.on_stored)
    try:
        await _run_due(queue, concurrency)
        if left := seconds(f"drain of queue {queue.name!r}: within", within):
            clock = queue.jet.runtime.clock
            if not isinstance(clock, ManualClock):
                raise ConfigError(
                    "drain(within=...) turns the clock: open the store with pelton.testing.manual_runtime()"
                )
            until = clock.monotonic() + left
            while (wait := await _next_due(queue, clock)) is not None and clock.monotonic() + wait <= until:
                clock.advance(wait)
                await _run_due(queue, concurrency)
            clock.advance(until - clock.monotonic())
            await _run_due(queue, concurrency)
    finally:
        queue.observe(None, queue.on_stored)
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

    queue.observe(on_stored=run)
    try:
        yield
    finally:
        queue.observe()


async def _next_due(queue: Queue, clock: ManualClock) -> float | None:
    """Return in how many seconds something is due: a job, or a call of the store, which may bring one."""
    calls = [] if (call := clock.next_call()) is None else [call]
    jobs = [(job.due - clock.now()) / 1e9 async for job in queue.jobs() if job.due]
    # Not zero: the clock goes on, whatever is overdue.
    return max(min(calls + jobs), 1e-9) if calls or jobs else None


async def _run_due(queue: Queue, concurrency: int) -> None:
    await queue.work(concurrency=concurrency, until_idle=True, handle_signals=False)


async def _raise(queue: Queue, errors: dict[str, BaseException]) -> None:
    raised = [
        error
        for job_id, error in errors.items()
        if not isinstance(error, _DECISIONS) and (await queue.get(job_id)).state != "completed"
    ]
    if raised:
        raise BaseExceptionGroup(f"jobs of queue {queue.name!r} raised", raised)
