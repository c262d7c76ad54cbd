"""Running a queue's jobs in tests: at once as they are enqueued, when the test says so, or anew from their history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from pelton.api import (
    Cancel,
    ConfigError,
    Continue,
    Delivered,
    Discard,
    JobArgumentsError,
    JobCancelledError,
    Outgoing,
    RetryJob,
    Snooze,
)
from pelton.api.times import Seconds
from pelton.connect import open as open_store
from pelton.engine import Engine
from pelton.queue import Job, JobContext, Jobs, Queue
from pelton.queue.model.naming import QueueNames, decode_key, token_of
from pelton.queue.model.options import seconds
from pelton.queue.model.records import AttemptRecords
from pelton.queue.model.states import NOTHING, Envelope, Finish, JobStep, StepRecord
from pelton.queue.run.attempt import ProgressNotes
from pelton.queue.run.blocking import BlockingContext, VerbRunner
from pelton.queue.run.steps import JobSteps
from pelton.queue.run.undo import JobUndone
from pelton.runtime.loop_thread import loop_threads
from pelton.testing.clock import ManualClock, in_background, manual_runtime

if TYPE_CHECKING:
    from pelton.observe import JobDetails
    from pelton.queue.registry import QueueContext

# What a job raises to say how it continues: decisions, not mistakes.
_DECISIONS = (RetryJob, Snooze, Continue, Cancel, Discard, JobCancelledError)
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


# --- a history that is replayed


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a function does with the history of a job: made by :func:`replay`."""

    next: tuple[str, ...]
    """What it does that the history has not, in order, up to the first thing whose result is not known."""
    has_returned: bool = False
    """Whether it came to its end."""
    value: Any = None
    """What it returned then, or the Continue that it raised."""


class _History(msgspec.Struct, kw_only=True):
    """What is replayed, as ``pelton jobs show --json`` writes it."""

    id: str
    job: str
    key: str = ""
    attempt: int = 0
    enqueued_at: int = 0
    arguments: msgspec.Raw = NOTHING
    history: Sequence[JobStep] = ()


_history: Final = msgspec.json.Decoder(_History).decode
_LONGEST_NAP_S: Final = 1.0


class _ReplayedSteps(JobSteps):
    """The steps of a job that is started to look at: as if it was undone, it ends at what is not remembered."""

    def __init__(self, queue: QueueContext, job: Any, told: _History) -> None:
        super().__init__(queue, None, job, _LONGEST_NAP_S, lambda *_: None)  # type: ignore[arg-type]  # nobody holds it
        self._done, self._sent = _known(told, queue.names)
        self.next: list[str] = []

    async def _known(self, subject: str, what: str) -> StepRecord | None:
        if self._done is not None and (sent := self._sent.get(subject)) is not None:
            self._done[subject] = sent
        return await super()._known(subject, what)

    def check_order(self, what: str) -> None:
        """Note something new; raise JobArgumentsError if it comes before what was done, by whatever code."""
        self.next.append(what)
        undoing, self.records.undoing = self.records.undoing, None
        try:
            super().check_order(what)
        finally:
            self.records.undoing = undoing

    async def keep(self, *messages: Outgoing) -> None:
        """Store nothing."""

    async def make_sure(self) -> None:
        """Nobody else has it."""

    def stop(self, *_: object) -> NoReturn:
        self.check_order("its transaction")
        raise JobUndone

    def check_end(self) -> None:
        """Raise JobArgumentsError if the function has not come to all that is remembered."""
        self.check_order("its end")
        if missing := self.undo.missing(self._done or {}):
            names = ", ".join(sorted(decode_key(subject.split(".")[6]) for subject in missing))
            raise JobArgumentsError(self.records.envelope.job, f"it does not register undo {names}", is_stored=True)


async def replay(history: JobDetails | str | bytes, function: Callable[..., Any]) -> Replay:
    """Start the ``function`` of a job with what a job in production remembers; return what it would do next.

    ``history``: what ``pelton jobs show QUEUE ID --json`` writes, or `observe.job_with_details` returns. Steps, sleeps,
    signals, calls and `JobContext.changed` answer from it, and at the first thing that it does not have, the function
    ends; no step is called, nothing is stored. What the function raises is raised: JobArgumentsError also if it does
    something new before what was done, ends before that, calls another job, or does not take the arguments;
    JobResultError for a value of another type. Raises ConfigError.
    """
    told = _told(history)
    job = function if isinstance(function, Job) else Jobs().job(name=told.job)(function)
    if not job.context_parameter:
        raise ConfigError(f"replay of job {told.job!r}: its function has to take a JobContext")
    runtime = manual_runtime()
    # Its sleeps are over.
    runtime.clock.set_wall(max([runtime.clock.now(), *(max(one.at, one.until) + 1 for one in told.history)]))
    async with open_store("memory:", runtime=runtime) as jet:
        queue = (await jet.queue("replay" if job.queue is None else job.queue.name))._context
        leased: Any = type("_Leased", (), {"records": _records_of(told, queue.names)})
        verbs, made = VerbRunner(asyncio.get_running_loop()), list[_ReplayedSteps]()

        def make_steps() -> _ReplayedSteps:
            # By the first verb: it notes who calls it.
            made.append(_ReplayedSteps(queue, leased, told))
            return made[0]

        kind: Callable[..., JobContext] = JobContext if job.is_async else partial(BlockingContext, verbs=verbs)
        notes = partial(ProgressNotes, queue, told.id, asyncio.get_running_loop())
        context: Any = kind(
            leased.records, lambda *_: context.steps.stop(), make_steps, notes, None, lambda: jet, lambda: None
        )
        arguments = {**job.arguments.decode(leased.records.envelope.args), job.context_parameter: context}
        run = partial(job.hooks.around(job.function, context, is_async=job.is_async), **arguments)
        try:
            value = await (_call(run, context) if job.is_async else asyncio.to_thread(_call_on_thread, run, context))
        except JobUndone:
            return Replay(next=tuple(made[0].next))
        finally:
            context.close()
        return Replay(next=tuple(made[0].next[:-1]), has_returned=True, value=value)


async def _call(run: Callable[[], Any], context: Any) -> Any:
    try:
        value = await run()
    except Continue as again:
        value = again
    context.steps.check_end()
    return value


def _call_on_thread(run: Callable[[], Any], context: Any) -> Any:
    try:
        value = run()
    except Continue as again:
        value = again
    context.verbs.run(lambda: context.steps.check_end())
    return value


def _told(history: JobDetails | str | bytes) -> _History:
    if not isinstance(history, str | bytes):
        arguments = msgspec.Raw(history.arguments or NOTHING)
        job = history.job
        told = _History(
            id=job.id, job=job.job, key=job.key, attempt=job.attempt, enqueued_at=job.enqueued_at, arguments=arguments,
            history=history.history,
        )  # fmt: skip
    else:
        try:
            told = _history(history)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"replay: give what 'pelton jobs show QUEUE ID --json' writes ({error})") from None
    if told.arguments == NOTHING:
        raise ConfigError(f"replay: job {told.id} has ended, and remembers nothing; take one that has not")
    return told


def _records_of(told: _History, names: QueueNames) -> AttemptRecords:
    delivered = Delivered(
        names.free_subject, 1, told.enqueued_at, None, b"", 1, max(told.attempt, 1) + 1, 0, names.jobs, "replay", 1
    )
    envelope = Envelope(job=told.job, args=told.arguments, key=told.key)
    return AttemptRecords(
        names, "replay", delivered, int, int, told.id, max(told.attempt, 1), envelope, undoing=Finish("cancelled")
    )


def _known(told: _History, names: QueueNames) -> tuple[dict[str, StepRecord], dict[str, StepRecord]]:
    """Return what a job remembers, by subject, and as what it will remember the signals that it has not received."""
    known, sent, last = dict[str, StepRecord](), dict[str, StepRecord](), dict[str, tuple[int, int]]()
    for one in told.history:
        if one.kind == "received":
            last[one.name] = one.number, one.seq or last.get(one.name, (0, 0))[1]
        if one.kind != "signal":
            tokens = (token_of(one.name), one.number) if one.number else (token_of(one.name),)
            record = StepRecord(result=one.value, until=one.until, seq=one.seq, code=one.code)
            known[names.memory_subject(told.id, one.kind, *tokens)] = record
    for one in told.history:
        number, seq = last.get(one.name, (0, 0))
        if one.kind == "signal" and one.seq > seq:
            last[one.name] = number + 1, one.seq
            subject = names.memory_subject(told.id, "received", token_of(one.name), number + 1)
            sent[subject] = StepRecord(result=one.value, seq=one.seq)
    return known, sent
