"""What a running job can ask and do: its :class:`JobContext`, passed to the parameter annotated with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, overload

from pelton.api import ConfigError, JobCancelledError, LeaseLostError, Outgoing, headers
from pelton.api.admission import check_subject
from pelton.api.times import Seconds
from pelton.queue.job_message import RunContext
from pelton.queue.model.options import DEFAULT_BACKOFF, BackoffRule, JobRules, job_rules
from pelton.queue.model.states import FlowPlace
from pelton.queue.run.calls import CalledJob, JobCalls
from pelton.queue.run.steps import RAISES

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from pelton.api.tracing import Tracing
    from pelton.queue.job import JobCall, JobDefinition, JobWithOptions
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.run.steps import JobSteps
    from pelton.queue.transaction import JobTransaction, Transaction

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")


class TellsProgress(Protocol):
    """Where the progress of a job goes. ``is_used``: some was told."""

    is_used: bool

    def tell(self, fraction: float, note: str) -> None:
        """Store progress soon; from any thread."""

    def close(self) -> None:
        """Store nothing more."""


class _Done:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE: Final = _Done()


class JobContext(RunContext):
    """One attempt of a job. Safe to use from the job's thread.

    ``token`` grows with every start of a job of the same key, or of the same job: an outside system that remembers the
    largest token it has seen can refuse a worker that was replaced. ``attempt`` counts from 1; ``last_error`` is why
    the previous attempt failed; ``meta`` is what the program has attached to the call. ``flow`` says of which flow the
    job is, if it is of one (see `FlowExtension`).

    In a plain function, on a thread or in a process, what an async one awaits blocks. For type checkers, its context is
    a `pelton.sync.JobContext`.
    """

    __slots__ = (
        "_calls", "_cancelled", "_emitted", "_jet", "_lost", "_make_notes", "_make_steps", "_notes",
        "_open_transaction", "_state", "_steps", "_stopping", "attempt", "enqueued_at", "flow", "id", "job", "key",
        "last_error", "meta", "queue", "token", "tracing", "worker",
    )  # fmt: skip

    def __init__(
        self,
        records: AttemptRecords,
        open_transaction: Callable[[JobContext, Seconds], JobTransaction] | None,
        make_steps: Callable[[], JobSteps],
        make_notes: Callable[[], TellsProgress],
        tracing: Tracing | None = None,
        jet: Callable[[], Any] | None = None,
        state: Callable[[], Any] | None = None,
    ) -> None:
        envelope = records.envelope
        self.queue: str = records.queue
        self.worker: str = records.worker
        self.id: str = records.id
        self.job: str = envelope.job
        self.key: str = envelope.key
        self.meta: dict[str, str] = envelope.meta
        self.flow: FlowPlace | None = None if envelope.flow is None or envelope.flow.caller else envelope.flow
        self.attempt: int = records.attempt
        self.last_error: str = records.last_error
        self.enqueued_at: int = records.delivered.time_ns
        self.token: int = records.delivered.token
        self._emitted: list[Outgoing] = []
        self.tracing: Tracing | None = tracing
        self._lost = ""
        self._stopping = False
        self._cancelled: JobCancelledError | None = None
        # Only for jobs that run on the worker's event loop.
        self._open_transaction = open_transaction
        self._jet = jet
        self._state = state
        # Most jobs need neither.
        self._make_steps = make_steps
        self._make_notes: Callable[[], TellsProgress] | None = make_notes
        self._steps: JobSteps | None = None
        self._calls: JobCalls | None = None
        self._notes: TellsProgress | None = None

    @property
    def jet(self) -> Any:
        """The open store of the worker: publish, enqueue and look there.

        A plain function gets its blocking face, as that of `pelton.sync`. Raises ConfigError in a process.
        """
        if self._jet is None:
            raise ConfigError(
                f"job {self.job!r}: context.jet is of the worker; this job runs in a process of its own: open the store"
            )
        return self._jet()

    @property
    def state(self) -> Any:
        """What the `lifespan` of the job's `Jobs` has yielded, None without one. Raises ConfigError in a process."""
        if self._state is None:
            raise ConfigError(
                f"job {self.job!r}: context.state is of the worker; this job runs in a process of its own"
            )
        return self._state()

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: another worker may have the job, and this result will be refused."""
        return bool(self._lost)

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the job: on a thread, return or call :meth:`check`."""
        return self._cancelled is not None

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: finish soon, or the job is handed back."""
        return self._stopping

    def check(self) -> None:
        """Raise LeaseLostError if the lease was lost, and JobCancelledError if the job was cancelled."""
        if self._lost:
            raise LeaseLostError(self.id, self.key, self._lost)
        if self._cancelled is not None:
            raise self._cancelled

    def emit(self, subject: str, data: bytes, message_headers: Mapping[str, str | Sequence[str]] | None = None) -> None:
        """Publish a message together with the completion of this job: both take effect, or neither does.

        ``message_headers`` map names to one text or to several. Raises ConfigError.
        """
        if not isinstance(subject, str) or not isinstance(data, (bytes, bytearray, memoryview)):
            raise ConfigError(
                f"job {self.id}: emit takes a subject (str) and data (bytes), not {subject!r}, {data!r:.40}"
            )
        check_subject(subject)
        block = headers.encode(message_headers) if message_headers else None
        self.add_emitted((Outgoing(subject, bytes(data), block),))

    def transaction(self, *, timeout: Seconds = 1.0) -> JobTransaction:
        """Return a transaction that completes this job: ``async with ctx.transaction() as tx``.

        When its block is left, the job has ended together with everything done in the block. If the block raises or the
        lease was lost (LeaseLostError), nothing has happened. ``tx.result`` is the job's result; what the function
        returns after the block is not kept. It holds the writer for at most ``timeout`` seconds. Like
        ``jet.transaction``, for async jobs of an embedded store. Raises ConfigError.
        """
        if self._open_transaction is None:
            raise ConfigError(f"job {self.job!r}: transaction() needs an async function; this one runs on a thread")
        return self._open_transaction(self, timeout)

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    # None of these is a coroutine function: a plain function is given what blocks instead (``blocking.py``).
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Do a step of the job once: call ``function``, and remember its result.

        A later attempt of the job, on whatever worker, gets that result without a call. What is remembered is on disk
        when this returns, and nothing is of an attempt that was replaced (LeaseLostError). A step that raises, or whose
        process dies before its result is stored, is done again. ``name`` is used once in a job. Results are JSON, as
        those of jobs, and are returned as the type that the function declares; a function that is not async runs on a
        thread. Raises ConfigError, JobResultError.
        """
        return self._step(name, function, args, kwargs, None)

    def _step(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], rules: Any
    ) -> Coroutine[Any, Any, Any]:
        return self._steps_for().step(name, function, args, kwargs, rules)

    def options(
        self,
        *,
        max_attempts: int = 1,
        backoff: BackoffRule = DEFAULT_BACKOFF,
        permanent: type[BaseException] | Sequence[type[BaseException]] = (),
        timeout: Seconds | None = None,
    ) -> StepsWithOptions:
        """Return what does a step with options: ``await context.options(max_attempts=3).step("charge", charge, 7)``.

        A step that raises is called again, at most ``max_attempts`` times in all, after a pause of ``backoff``, as of
        jobs; errors of ``permanent`` classes are raised at once, and the last one is. A call that takes longer than
        ``timeout`` seconds is stopped, and fails with StepTimeoutError: for async functions. Raises ConfigError.
        """
        rules = job_rules(f"job {self.id}: the options of a step", max_attempts, backoff, permanent, timeout)
        return StepsWithOptions(self._step, rules)

    def transaction_step(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        """Do a step once whose effects are in the store: ``function`` gets a transaction first, then the arguments.

        What it does in the transaction (messages, jobs, your own SQL) takes effect together with the record that the
        step is done, or not at all: it is done **exactly** once. Keep it short: it holds the store's writer. For async
        jobs of an embedded store. Raises ConfigError, and as :meth:`step` does.
        """
        if self._open_transaction is None:
            raise ConfigError(f"job {self.job!r}: transaction_step() needs an async function; this one is not")
        return self._steps_for().in_transaction(name, function, args, kwargs)

    def sleep(self, seconds: Seconds, *, name: str = "") -> Coroutine[Any, Any, None]:
        """Continue after ``seconds``, by the wall clock, even if processes end meanwhile.

        For more than a second the job is given back, which is no attempt: it holds no slot and no worker, and its
        function starts **again** when the time is over; then this returns at once. So do what comes before it in
        :meth:`step`. Sleeps are told apart by their order, or by their ``name``. Raises ConfigError.
        """
        return self._steps_for().sleep(seconds, name)

    @overload
    def wait_for(self, name: str, /, *, timeout: Seconds | None = ...) -> Coroutine[Any, Any, Any]: ...
    @overload
    def wait_for(self, name: str, kind: type[R], /, *, timeout: Seconds | None = ...) -> Coroutine[Any, Any, R]: ...
    @overload
    def wait_for(
        self, name: str, kind: type[R], /, *, timeout: Seconds | None = ..., default: D
    ) -> Coroutine[Any, Any, R | D]: ...

    def wait_for(
        self, name: str, kind: Any = Any, /, *, timeout: Seconds | None = None, default: object = RAISES
    ) -> Coroutine[Any, Any, Any]:
        """Return the next signal of a name that was sent to this job, as a value of the type ``kind``.

        What was sent before waits. If there is none, the job is given back, as in :meth:`sleep`, until one comes. Each
        signal is received once, in order, and remembered as a step is. After ``timeout`` seconds by the wall clock the
        wait is over, for later attempts as well: it raises SignalTimeoutError, or returns the ``default``.
        Raises ConfigError.
        """
        return self._steps_for().wait_for(name, kind, timeout, default)

    def publish(self, name: str, value: object, /) -> Coroutine[Any, Any, None]:
        """Publish a ``value`` for those who await it by its ``name``, while the job goes on: see `JobHandle.event`.

        It is stored when this returns, as JSON, and once, as a step is. Raises ConfigError,
        JobResultError.
        """
        return self._steps_for().publish(name, value)

    def changed(self, name: str, /) -> Coroutine[Any, Any, bool]:
        """Whether new code may be used here: False for a job that has been past this point before, with older code.

        Ask it, by a ``name`` of the change, where you add, remove or move a step, a sleep, a wait or a call: jobs that
        have begun do as they did, later ones do the new. The answer stays the same for a job. Raises
        ConfigError.
        """
        return self._steps_for().changed(name)

    def call(
        self, job: JobDefinition[P, R] | JobWithOptions[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> CalledJob[R]:
        """Call another job: ``receipt = await context.call(charge.options(key="k"), order)``.

        It is enqueued once, however often this job starts. Until it has ended, this job is given back, as in
        :meth:`wait_for`; then this returns its value, or raises JobFailedError, now and in later attempts. If this job
        ends before it, it is cancelled, unless the call is `CalledJob.detach`. Calls are told apart by their order.
        Raises JobArgumentsError, ConfigError.
        """
        return self.call_of(job.bind(*args, **kwargs))

    def call_of(self, call: JobCall) -> CalledJob[Any]:
        """Return the next call of another job; for the worker."""
        return self._calls_for().new(call)

    def gather(
        self, *calls: CalledJob[R], at_once: int | None = None, return_exceptions: bool = False
    ) -> Coroutine[Any, Any, list[R]]:
        """Call several jobs side by side, and return their values in the order of the calls.

        At most ``at_once`` of them are unfinished at a time; None: all. The first one that fails raises its
        JobFailedError, and the others are cancelled if this job then ends; with ``return_exceptions``, errors are
        returned among the values. Raises ConfigError.
        """
        return self._calls_for().gather(calls, at_once, return_exceptions=return_exceptions)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """Return the time, in UTC: a later attempt gets the same."""
        return self._steps_for().now()

    def random(self) -> Coroutine[Any, Any, float]:
        """Return a random number from 0 to 1: a later attempt gets the same."""
        return self._steps_for().random()

    def uuid(self) -> Coroutine[Any, Any, UUID]:
        """Return a UUID that nobody else has: a later attempt gets the same."""
        return self._steps_for().uuid()

    def on_failure(
        self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, None]:
        """Register what undoes a step: it is called if the job fails for good or is cancelled, the last one first.

        For that, the function starts once more, and ends at the first thing that it does not remember.
        Raises ConfigError.
        """
        return self._steps_for().undo.register(function, args, kwargs)

    def progress(self, fraction: float, note: str = "") -> Awaitable[None]:
        """Tell how far the job is: a ``fraction`` from 0 to 1, and a ``note``; the await is optional.

        Any process reads the last one as ``JobInfo.progress``. At most two a second are stored, so tell it as often as
        you like. From any thread. Raises ConfigError.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigError(f"job {self.id}: progress is {fraction!r}; give a number from 0 to 1")
        if not isinstance(note, str):
            raise ConfigError(f"job {self.id}: the note of its progress is {note!r}; give a text")
        if self._notes is None and self._make_notes is not None:
            self._notes = self._make_notes()
        if self._notes is not None:
            self._notes.tell(float(fraction), note)
        return _DONE

    def _steps_for(self) -> JobSteps:
        if self._steps is None:
            self._steps = self._make_steps()
        return self._steps

    def _calls_for(self) -> JobCalls:
        if self._calls is None:
            self._calls = JobCalls(self._steps_for())
        return self._calls

    @property
    def has_left(self) -> bool:
        """Whether this attempt may have left steps or progress; for the worker."""
        return (self._steps is not None and self._steps.is_used) or (self._notes is not None and self._notes.is_used)

    @property
    def has_called(self) -> bool:
        """Whether this attempt has called other jobs; for the worker."""
        return self._calls is not None and self._calls.number > 0

    @property
    def steps(self) -> JobSteps:
        """What the job remembers; for the worker."""
        return self._steps_for()

    def end(self) -> Awaitable[None]:
        """Wait for the threads of steps, which can't be stopped; for the worker."""
        return _DONE if self._steps is None else self._steps.end()

    def close(self) -> None:
        """Tell no more progress; for the worker, on its event loop."""
        if self._notes is not None:
            self._notes.close()

    def emitted_messages(self) -> list[Outgoing]:
        """Return what is to be published with the completion."""
        return self._emitted

    def add_emitted(self, messages: Sequence[Outgoing]) -> None:
        """Publish these with the completion; for the worker."""
        self._emitted += messages if self.tracing is None else map(self.tracing.with_context, messages)

    def lose(self, reason: str) -> None:
        """Note that the lease was lost; for the worker."""
        self._lost = reason

    def cancel(self, cancelled: JobCancelledError) -> None:
        """Note that the job was cancelled; for the worker."""
        self._cancelled = cancelled

    def stop(self) -> None:
        """Note that the worker is stopping; for the worker."""
        self._stopping = True


class StepsWithOptions:
    """Does a step of a job with options; made by `JobContext.options`."""

    __slots__ = ("_rules", "_step")

    def __init__(self, step: Callable[..., Coroutine[Any, Any, Any]], rules: JobRules) -> None:
        self._step = step
        self._rules = rules

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Do a step, whose ``function`` may be called several times: see `JobContext.step`. Raises ConfigError."""
        if self._rules.timeout is not None and not iscoroutinefunction(function):
            raise ConfigError(f"step {name!r}: timeout needs an async function; a thread can't be stopped")
        return self._step(name, function, args, kwargs, self._rules)
