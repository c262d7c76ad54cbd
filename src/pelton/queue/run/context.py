"""What a running job can ask and do: its :class:`JobContext`, and its steps.

**Steps.** A step that is done is one message, stored while the attempt holds its job: in a store file in the
transaction that extends its lease, on a cluster on condition that nobody else has stored the step. So a step has one
result, and an attempt that was replaced can add none. The first delivery of a job reads nothing; later ones read all
steps at once, when they come to the first. A sleep is a step, too: the time when it ends, stored as the job is given
back.

A function that is not async runs on a thread, which nothing can stop: a step ends when its thread has, and records what
it has done, even if the job was cancelled. An attempt ends when all its steps have, also those it has not waited for.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from contextvars import copy_context
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, get_type_hints, overload

import msgspec

from pelton.api import (
    AckRejectedError,
    ConfigError,
    Delivered,
    JobCancelledError,
    JobResultError,
    LeaseLostError,
    MessageTooLargeError,
    Outgoing,
    PeltonError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.admission import check_subject
from pelton.api.times import Seconds
from pelton.jet.registers import ASK_AGAIN_S, is_busy
from pelton.jet.stream import last_of
from pelton.queue.job_message import ResultCodec, RunContext
from pelton.queue.model.options import checked_text, seconds
from pelton.queue.model.records import PutOff
from pelton.queue.model.states import FlowPlace, StepRecord
from pelton.queue.scan import deliveries
from pelton.queue.transaction import StepTransaction
from pelton.runtime import until_ended

if TYPE_CHECKING:
    from pelton.api.tracing import Tracing
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.leased_jobs import LeasedJob, LeasedJobs
    from pelton.queue.transaction import JobTransaction, Transaction

_encode: Final = msgspec.json.Encoder().encode
_step: Final = msgspec.json.Decoder(StepRecord).decode
_LONGEST_SLEEP_S: Final = 300 * 86_400.0
_WRITER_S: Final = 5.0


class JobSteps:
    """The steps of one attempt of an async job. ``is_used``: it has done or slept something.

    It sleeps for ``longest_nap`` seconds without being given back; ``fall_asleep`` ends the attempt for longer.
    """

    is_used: bool

    __slots__ = (
        "_by", "_done", "_fall_asleep", "_held", "_is_over", "_job", "_lock", "_longest_nap", "_queue", "_records",
        "_sleeps", "_threads", "_used", "is_used",
    )  # fmt: skip

    def __init__(
        self,
        queue: QueueContext,
        held: LeasedJobs[Any],
        job: LeasedJob,
        longest_nap: float,
        fall_asleep: Callable[[PutOff, Sequence[Outgoing]], None],
    ) -> None:
        self._queue = queue
        self._held = held
        self._job = job
        self._records = records = job.records
        self._longest_nap = longest_nap
        self._fall_asleep = fall_asleep
        self._by = f"{records.delivered.token}.{records.delivered.num_delivered}.{id(self):x}"
        # By subject; None: not read yet.
        self._done: dict[str, StepRecord] | None = {} if records.delivered.num_delivered == 1 else None
        self._lock = asyncio.Lock()
        self._used: set[str] = set()
        self._threads: set[asyncio.Future[Any]] = set()
        self._is_over = False
        self._sleeps = 0
        self.is_used = False

    async def step(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Do a step, or return what it has returned."""
        subject, codec = self._subject_of(name), _codec_of(function, f"{self._records.envelope.job}, step {name!r}")
        done = (await self._known_steps()).get(subject)
        if done is not None:
            return codec.decode(done.result)
        await self._make_sure()

        async def keep(found: Any) -> Any:
            result = codec.encode(found)
            # Decoded now, so that an unreadable result fails this attempt and not the next one.
            value = codec.decode(result)
            await self._keep(self._message(subject, StepRecord(result=result, by=self._by)))
            return value

        with self._span(name):
            if inspect.iscoroutinefunction(function):
                found = await function(*args, **kwargs)
            else:
                found = await self._on_thread(function, args, kwargs, keep)
                found = await found if inspect.isawaitable(found) else found
        return await keep(found)

    async def _on_thread(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        keep: Callable[[Any], Coroutine[Any, Any, Any]],
    ) -> Any:
        is_cancelled = False

        def call() -> Any:
            if is_cancelled:
                raise asyncio.CancelledError
            self._check()
            return function(*args, **kwargs)

        running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, call)
        self._threads.add(running)
        running.add_done_callback(self._threads.discard)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            is_cancelled = True
            await until_ended(running)
            if running.exception() is None and not inspect.isawaitable(running.result()):
                late = _try_to_keep(keep(running.result()))
                await until_ended(self._queue.runtime.spawn(late, f"pelton {self._queue.name} step"))
            raise

    async def end(self) -> None:
        """Wait for the threads of all steps, and begin no more."""
        self._is_over = True
        while self._threads:
            await until_ended(next(iter(self._threads)))

    async def in_transaction(
        self, name: str, function: Callable[..., Coroutine[Any, Any, Any]], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Do a step in a transaction that also records it."""
        subject, codec = self._subject_of(name), _codec_of(function, f"{self._records.envelope.job}, step {name!r}")
        done = (await self._known_steps()).get(subject)
        if done is not None:
            return codec.decode(done.result)
        await self._make_sure()
        async with StepTransaction(self._queue.backend, _WRITER_S) as tx:
            with self._span(name):
                result = codec.encode(await function(tx, *args, **kwargs))
            value = codec.decode(result)
            message = self._message(subject, StepRecord(result=result, by=self._by))
            if (refused := await tx.keep(self._records.delivered, message)) is not None:
                raise self._lost_error(refused)
        return value

    async def sleep(self, duration: Seconds, name: str) -> None:
        """Return when the time is over: here, or in a later delivery."""
        what = f"job {self._records.id}: the seconds of sleep()"
        if (limit := seconds(what, duration)) > _LONGEST_SLEEP_S:
            raise ConfigError(f"{what}: {limit:g} s are more than 300 days; enqueue another job with at=")
        self._sleeps += 1
        subject = self._queue.names.sleep_subject(self._records.id, name or f"{self._sleeps}")
        self._use(subject, f"sleep {name!r}")
        record, clock = (await self._known_steps()).get(subject), self._queue.clock
        await self._make_sure()
        await self._queue.time.refresh(self._queue.names.jobs)
        now = self._queue.time.now()
        until = now + int(limit * 1e9) if record is None else record.until
        # The clock may have been set back since the record was read.
        left = min((until - now) / 1e9, limit)
        if left <= self._longest_nap:
            await clock.sleep(max(left, 0.0))
            return
        kept = [] if record is not None else [self._message(subject, StepRecord(until=until, by=self._by))]
        self._fall_asleep(PutOff(left, "it sleeps", began=True), kept)
        # The worker cancels the job, which starts again.
        await asyncio.get_running_loop().create_future()

    # --- what is remembered

    async def _known_steps(self) -> dict[str, StepRecord]:
        self.is_used = True
        async with self._lock:
            while self._done is None:
                try:
                    self._done = await self._read()
                except PeltonError as error:
                    if not is_busy(error):
                        raise
                    await self._make_sure()
                    await self._queue.clock.sleep(ASK_AGAIN_S)
        return self._done

    async def _read(self) -> dict[str, StepRecord]:
        names, found = self._queue.names, dict[str, StepRecord]()
        progress = names.progress_subject(self._records.id)
        stream = await self._queue.jet.stream(names.running)
        async with aclosing(deliveries(stream, names.traces_of(self._records.id))) as stored:
            async for message in stored:
                if message.subject != progress:
                    record = _step(message.data)
                    if record.until and isinstance(message, Delivered):
                        record = msgspec.structs.replace(record, until=record.until + message.jumped_ns)
                    found[message.subject] = record
        return found

    async def _keep(self, message: Outgoing) -> None:
        while True:
            await self._make_sure()
            try:
                await self._held.source.keep(self._records.delivered, message)
            except AckRejectedError as refused:
                raise self._lost_error(refused) from refused
            except MessageTooLargeError as refused:
                # Another attempt would do the same work again, and be refused again.
                raise JobResultError(f"{self._records.envelope.job}, a step", str(refused)) from refused
            except WrongLastSequenceError as refused:
                # Ours, if the answer to an earlier try was lost.
                stored = await last_of(await self._queue.jet.stream(self._queue.names.running), message.subject)
                if stored is None or stored.data != message.data:
                    raise self._lost_error(refused) from refused
                return
            except PeltonError as error:
                if not is_busy(error):
                    raise
                await self._queue.clock.sleep(ASK_AGAIN_S)
            else:
                return

    # --- names and errors

    def _subject_of(self, name: str) -> str:
        checked_text(f"job {self._records.id}: the name of a step", name)
        subject = self._queue.names.step_subject(self._records.id, name)
        self._use(subject, f"step {name!r}")
        return subject

    def _use(self, subject: str, what: str) -> None:
        if subject in self._used:
            raise ConfigError(
                f"job {self._records.id} ({self._records.envelope.job!r}) comes to {what} twice: give each a name of "
                "its own, such as 'charge 2'"
            )
        self._used.add(subject)

    def _span(self, name: str) -> AbstractContextManager[None]:
        tracing = self._queue.backend.tracing
        return nullcontext() if tracing is None else tracing.stepping(name)

    def _message(self, subject: str, record: StepRecord) -> Outgoing:
        return Outgoing(subject, _encode(record))

    def _check(self) -> None:
        if self._held.is_doubtful(self._job):
            raise self._lost_error("")
        if self._is_over:
            raise ConfigError(f"job {self._records.id}: its function has returned: await its steps before it does")

    async def _make_sure(self) -> None:
        await self._held.is_sure(self._job)
        self._check()

    def _lost_error(self, why: object) -> LeaseLostError:
        return LeaseLostError(self._records.id, self._records.envelope.key, str(why))


async def _try_to_keep(keeping: Coroutine[Any, Any, Any]) -> None:
    with suppress(PeltonError):
        await keeping


@lru_cache(256)
def _codec_of(function: Callable[..., Any], what: str) -> ResultCodec:
    try:
        kind = get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        # Not a plain function, or with names that cannot be looked up: its result is what JSON gives.
        kind = Any
    return ResultCodec(what, kind)


# --- what a running job can ask and do: its :class:`JobContext`, passed to the parameter annotated with it

P = ParamSpec("P")
R = TypeVar("R")


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
    """

    __slots__ = (
        "_cancelled", "_emitted", "_jet", "_lost", "_make_notes", "_make_steps", "_notes", "_open_transaction",
        "_state", "_steps", "_stopping", "attempt", "enqueued_at", "flow", "id", "job", "key", "last_error", "meta",
        "queue", "token", "tracing", "worker",
    )  # fmt: skip

    def __init__(
        self,
        records: AttemptRecords,
        open_transaction: Callable[[JobContext, Seconds], JobTransaction] | None,
        make_steps: Callable[[], JobSteps] | None,
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
        self.flow: FlowPlace | None = envelope.flow
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
        """Raise LeaseLostError if the lease was lost, and JobCancelledError if the job was cancelled.

        Call it regularly in long work on a thread.
        """
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

    # None of the three is a coroutine function: what they need is checked as they are called, on threads too.
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Do a step of the job once: call ``function``, and remember its result.

        A later attempt of the job, on whatever worker, gets that result without a call. What is remembered is on disk
        when this returns, and nothing is of an attempt that was replaced (LeaseLostError). A step that raises, or whose
        process dies before its result is stored, is done again. ``name`` is used once in a job. Results are JSON, as
        those of jobs, and are returned as the type that the function declares; a function that is not async runs on a
        thread. For async jobs. Raises ConfigError, JobResultError.
        """
        return self._steps_for("step()").step(name, function, args, kwargs)

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
        jobs of an embedded store. Raises as :meth:`step` does.
        """
        return self._steps_for("transaction_step()").in_transaction(name, function, args, kwargs)

    def sleep(self, seconds: Seconds, *, name: str = "") -> Coroutine[Any, Any, None]:
        """Continue after ``seconds``, by the wall clock, even if processes end meanwhile.

        For more than a second the job is given back, which is no attempt: it holds no slot and no worker, and its
        function starts **again** when the time is over; then this returns at once. So do what comes before it in
        :meth:`step`. Sleeps are told apart by their order, or by their ``name``. For async jobs. Raises ConfigError.
        """
        return self._steps_for("sleep()").sleep(seconds, name)

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

    def _steps_for(self, what: str) -> JobSteps:
        if self._steps is None:
            if self._make_steps is None:
                raise ConfigError(f"job {self.job!r}: {what} needs an async function; this one is not")
            self._steps = self._make_steps()
        return self._steps

    @property
    def has_left(self) -> bool:
        """Whether this attempt may have left steps or progress; for the worker."""
        return (self._steps is not None and self._steps.is_used) or (self._notes is not None and self._notes.is_used)

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
