"""The steps of a running job: what it has done, when it wakes, what it has received.

**Steps.** A step that is done is one message, stored while the attempt holds its job: in a store file in the
transaction that extends its lease, on a cluster on condition that nobody else has stored the step. So a step has one
result, and an attempt that was replaced can add none. The first delivery of a job reads nothing; later ones read all
steps at once, when they come to the first. A sleep is a step, too: the time when it ends, stored as the job is given
back.

**Signals** (docs/decisions/0041). A wait receives the first signal of its name after the one that the wait before has
received, and stores it as a step is. If there is none, the job is given back until its timeout, on condition that none
has come since.

**New code.** A record names the code of its function. Where that has changed since, and a new step comes before one
that is remembered, it is not known what the job is to do: it is given back, and is stuck until a worker has other code.
Only functions that do one thing after another, and whose steps have not failed, have such an order.

A function that is not async runs on a thread, which nothing can stop: a step ends when its thread has, and records what
it has done, even if the job was cancelled. An attempt ends when all its steps have, also those it has not waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from functools import lru_cache, partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_type_hints
from uuid import NAMESPACE_OID, UUID, uuid5
from zlib import crc32

import msgspec

from pelton.api import (
    AckRejectedError,
    Cancel,
    ConfigError,
    Continue,
    Discard,
    JobArgumentsError,
    JobCancelledError,
    JobResultError,
    LeaseLostError,
    MessageTooLargeError,
    Outgoing,
    PeltonError,
    PermanentJobError,
    RetryJob,
    SignalTimeoutError,
    Snooze,
    StepTimeoutError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.job_errors import describe
from pelton.api.json_values import UNREADABLE
from pelton.api.times import Seconds
from pelton.jet.registers import until_answered
from pelton.jet.stream import last_of, next_of
from pelton.queue.job_message import ResultCodec
from pelton.queue.model.naming import CALLS, CANCEL, decode_key, token_of
from pelton.queue.model.options import checked_text, seconds
from pelton.queue.model.records import LONGEST_SLEEP_S, LONGEST_WAIT_S, AttemptRecords, PutOff
from pelton.queue.model.states import NOTHING, StepRecord, decode_step
from pelton.queue.run.undo import JobUndo, forget_rounds
from pelton.queue.scan import last_messages
from pelton.queue.setup import prepare_signals
from pelton.queue.transaction import StepTransaction
from pelton.runtime import owner, until_ended

if TYPE_CHECKING:
    from pelton.queue.model.options import JobRules
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.leased_jobs import LeasedJob, LeasedJobs

_log: Final = logging.getLogger("pelton.queue")
_encode: Final = msgspec.json.Encoder().encode
# A wait that has less left is over.
_TIMELY_NS: Final = 1_000_000
RAISES: Final = object()
"""The default of a wait that raises when its time is over."""
_WRITER_S: Final = 5.0
CALLS_ON: Final[ContextVar[Executor | None]] = ContextVar("pelton_calls_on", default=None)
"""Where a verb calls what is not async: on the thread that waits for it; None: on one of the loop's own."""
# What a step decides for its whole job is not tried again.
_FINAL: Final = (LeaseLostError, JobCancelledError, PermanentJobError, RetryJob, Snooze, Continue, Cancel, Discard)
_ORDERED: Final = ("step", "sleep", "wait", "received", "event", "call")


class JobSteps:
    """The steps of one attempt of an async job. ``is_used``: it has done or slept something.

    It sleeps for ``longest_nap`` seconds without being given back; ``fall_asleep`` ends the attempt for longer.
    """

    is_used: bool

    __slots__ = (
        "_cancelled", "_code", "_done", "_fall_asleep", "_held", "_is_over", "_job", "_lock", "_longest_nap",
        "_received", "_sleeps", "_task", "_threads", "_turns", "_used", "_waits", "by", "is_used", "keeps_together",
        "queue", "records", "seen", "told", "undo",
    )  # fmt: skip

    def __init__(
        self,
        queue: QueueContext,
        held: LeasedJobs[Any],
        job: LeasedJob,
        longest_nap: float,
        fall_asleep: Callable[[PutOff, Sequence[Outgoing]], None],
    ) -> None:
        self.queue: QueueContext = queue
        self.keeps_together: bool = queue.backend.planning.atomic_batches
        self._held = held
        self._job = job
        self.records: AttemptRecords = job.records
        records = self.records
        self._longest_nap = longest_nap
        self._fall_asleep = fall_asleep
        self.by: str = f"{records.delivered.token}.{records.delivered.num_delivered}.{id(self):x}"
        # By subject; None: not read yet.
        self._done: dict[str, StepRecord] | None = {} if records.delivered.num_delivered == 1 else None
        self._lock = asyncio.Lock()
        self._used: set[str] = set()
        self._threads: set[asyncio.Future[Any]] = set()
        self._is_over = False
        self._sleeps = 0
        # Of what is remembered, what the function has come to.
        self.seen: set[str] = set()
        definition = queue.jobs.get(records.envelope.job)
        code = getattr(None if definition is None else inspect.unwrap(definition.function), "__code__", None)
        self._code = _digest_of(code) if isinstance(code, CodeType) else ""
        self._task = owner()
        # By name of a signal: how many waits there were, the last one that was received, and whose turn it is.
        self._waits: dict[str, int] = {}
        self._received: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        # The called jobs that have told their ends, with the sequences of these signals, and the outcomes.
        self.told: dict[str, tuple[int, bytes]] = {}
        self.is_used = False
        self.undo: JobUndo = JobUndo(self)
        # Who cancels a job that may have something to undo tells it so, too.
        self._cancelled: JobCancelledError | None = None

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        rules: JobRules | None = None,
    ) -> Any:
        """Do a step, as often as ``rules`` say, or return what it has returned."""
        subject, codec = self._subject_of(name), codec_of(function, f"{self.records.envelope.job}, step {name!r}")
        if (done := await self._known(subject, f"step {name!r}")) is not None:
            return codec.decode(done.result)
        await self._begin(subject)

        async def keep(found: Any) -> Any:
            result = codec.encode(found)
            # Decoded now, so that an unreadable result fails this attempt and not the next one.
            value = codec.decode(result)
            await self.keep(self._message(subject, StepRecord(result=result, by=self.by)))
            return value

        with self._span(name), self.undo.noting(subject):
            if rules is None:
                found = await self._call(function, args, kwargs, keep)
            else:
                found = await self.try_often(f"step {name!r}", rules, function, args, kwargs, keep)
        return await keep(found)

    async def _call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        keep: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
    ) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        found = await self.on_thread(function, args, kwargs, keep)
        return await found if inspect.isawaitable(found) else found

    async def try_often(
        self,
        what: str,
        rules: JobRules,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        keep: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
    ) -> Any:
        """Call a function until it returns, as often as ``rules`` say."""
        tried = self.queue.names.memory_subject(self.records.id, "tried", token := token_of(what), "")
        # Those after which the job was given back.
        numbers = [int(one[len(tried) :].split(".")[0]) for one in await self.known_steps() if one.startswith(tried)]
        number, limit = max(numbers, default=0), rules.timeout if inspect.iscoroutinefunction(function) else None
        while True:
            number += 1
            error: Exception
            try:
                async with asyncio.timeout(limit) as timer:
                    return await self._call(function, args, kwargs, keep)
            except TimeoutError as own:
                error = own
                if limit is not None and timer.expired():
                    error = StepTimeoutError(self.records.id, self.records.envelope.job, what, limit)
                    error.__cause__ = own.__cause__ or own
            except Exception as own:
                error = own
            if isinstance(error, (*_FINAL, *rules.permanent)) or number >= rules.max_attempts:
                raise error
            delay, _ = rules.delay_after(number, error, self.queue.runtime.random)
            _log.info("job %s: %s is tried again in %g s: %r", self.records.id, what, delay, error)
            if self.records.undoing is None and self._task == owner():
                why, subject = f"{what} is tried again: {describe(error)}", self.records.at("tried", token, number)
                await self._rest(delay, why, subject, StepRecord(by=self.by))
            else:
                # Others that it does at once are not to be ended.
                await self.queue.clock.sleep(delay)
            await self.make_sure()

    async def on_thread(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        keep: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
    ) -> Any:
        """Call a function on a thread, and wait for its end, also if cancelled; ``keep`` is for its result then."""
        is_cancelled = False

        def call() -> Any:
            if is_cancelled:
                raise asyncio.CancelledError
            self._check()
            return function(*args, **kwargs)

        running = asyncio.get_running_loop().run_in_executor(CALLS_ON.get(), copy_context().run, call)
        self._threads.add(running)
        running.add_done_callback(self._threads.discard)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            is_cancelled = True
            await until_ended(running)
            if keep is not None and running.exception() is None and not inspect.isawaitable(running.result()):
                late = _try_to_keep(keep(running.result()))
                await until_ended(self.queue.runtime.spawn(late, f"pelton {self.queue.name} step"))
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
        subject, codec = self._subject_of(name), codec_of(function, f"{self.records.envelope.job}, step {name!r}")
        if (done := await self._known(subject, f"step {name!r}")) is not None:
            return codec.decode(done.result)
        await self._begin(subject)
        async with StepTransaction(self.queue.backend, _WRITER_S) as tx:
            with self._span(name), self.undo.noting(subject):
                result = codec.encode(await function(tx, *args, **kwargs))
            value = codec.decode(result)
            message = self._message(subject, StepRecord(result=result, by=self.by))
            if (refused := await tx.keep(self.records.delivered, message)) is not None:
                raise self._lost_error(refused)
        return value

    async def wait_for(self, name: str, kind: Any, timeout: Seconds | None, default: object) -> Any:
        """Return the next signal of a name: here, or in a later delivery."""
        what = f"job {self.records.id}: the name of a signal"
        limit = None if timeout is None else seconds(f"job {self.records.id}: timeout of wait_for()", timeout)
        # Those for one name receive one after the other.
        async with self._turns.setdefault(checked_text(what, name), asyncio.Lock()):
            number = self._waits[name] = self._waits.get(name, 0) + 1
            return await self._receive(name, number, kind, limit, default)

    async def _receive(self, name: str, number: int, kind: Any, limit: float | None, default: object) -> Any:
        names, job_id, token = self.queue.names, self.records.id, token_of(name)
        subject, wait = self.records.at("received", token, number), self.records.at("wait", token, number)
        known, stream = await self.known_steps(), await self.queue.jet.stream(names.running)
        self.seen.add(wait)
        if (received := await self._known(subject, f"the wait for signal {name!r}")) is None:
            await self._begin(subject)
            await self.queue.time.refresh(names.jobs)
            now, record = self.queue.time.now(), known.get(wait)
            if record is None:
                record = StepRecord(until=0 if limit is None else now + int(limit * 1e9), by=self.by)
            last = self._received.get(name, 0)
            signals = names.signals_of(job_id, token)
            # The last one is found at once, among however many messages of other jobs.
            newest = await last_of(stream, signals)
            signal = None if newest is None or newest.seq <= last else await next_of(stream, signals, last + 1)
            if signal is None and not (record.until and record.until - now <= _TIMELY_NS):
                left = (record.until - now) / 1e9 if record.until else None
                await self.wait_on(f"it waits for signal {name!r}", token, wait, record, last, left)
            # Read now: one of another type is not received, and waits for a version of the function that reads it.
            data = self._signal_of(name, kind, signal.data or NOTHING) if signal is not None else NOTHING
            received = StepRecord(result=data, by=self.by, until=record.until, seq=0 if signal is None else signal.seq)
            await self.keep(self._message(subject, received))
            known[subject] = received
        if received.seq:
            self._received[name] = received.seq
            return ResultCodec(name, kind).decode(received.result)
        if default is RAISES:
            raise SignalTimeoutError(job_id, self.records.envelope.job, name, limit or 0.0)
        return default

    def _signal_of(self, name: str, kind: Any, data: bytes | msgspec.Raw) -> msgspec.Raw:
        """Return the value of a signal. Raises JobArgumentsError."""
        try:
            ResultCodec(name, kind).decode(data)
        except (JobResultError, *UNREADABLE) as error:
            raise JobArgumentsError(
                self.records.envelope.job, f"signal {name!r} is not {kind!r}: {error}", is_stored=True
            ) from None
        return msgspec.Raw(data)

    async def wait_on(
        self, reason: str, signal: str, subject: str, record: StepRecord, last: int, left: float | None, wanted: int = 0
    ) -> NoReturn:
        """Give the job back until a signal, a token, comes after the one with the sequence ``last``.

        Also after ``left`` seconds. ``wanted``: until so many are there, or one that is urgent.
        """
        names, is_given = self.queue.names, not self._held.by_clock
        await prepare_signals(self.queue)
        if not is_given:
            self._held.confirm_waits()
        condition = {
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(last),
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: names.signals_of(self.records.id, signal),
        }
        delay = LONGEST_WAIT_S if left is None else min(left, LONGEST_WAIT_S)
        until = record.until
        why = PutOff(delay, reason, began=True, signal=signal, is_given=is_given, wanted=wanted, until=until)
        self._fall_asleep(why, [Outgoing(subject, _encode(record), headers.encode(condition))])
        # The worker cancels the job, which starts again.
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it was cancelled")

    async def publish(self, name: str, value: object) -> None:
        """Store a value for those who await it, once."""
        what = f"job {self.records.id}: the name of an event"
        token, number = token_of(checked_text(what, name)), self._waits.get(f"event {name}", 0) + 1
        self._waits[f"event {name}"] = number
        subject = self.records.at("event", token, number)
        if (record := await self._known(subject, f"event {name!r}")) is None:
            if self.records.undoing is not None:
                return
            result = ResultCodec(f"{self.records.envelope.job}, event {name!r}", Any).encode(value)
            record = StepRecord(result=result, by=self.by)
            await self.keep(self._message(subject, record))
        self.records.events = {**(self.records.events or {}), name: record.result}

    async def now(self) -> datetime:
        """Return the time when the function came here first."""
        await self.queue.time.refresh(self.queue.names.jobs)
        return datetime.fromtimestamp(await self._make_once("now", self.queue.time.now) / 1e9, UTC)

    async def random(self) -> float:
        """Return a random number from 0 to 1, the same each time."""
        return float(await self._make_once("random", self.queue.runtime.random.random))

    async def uuid(self) -> UUID:
        """Return a UUID that nobody else has, the same each time."""
        return UUID(await self._make_once("uuid", lambda: str(uuid5(NAMESPACE_OID, self.queue.runtime.ids.new()))))

    async def _make_once(self, kind: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` has returned when the function came here first."""
        number = self._waits[f"{kind}()"] = self._waits.get(f"{kind}()", 0) + 1
        subject = self.records.at("fixed", kind, number)
        if (record := await self._known(subject, f"{kind}() {number}")) is None:
            await self._begin(subject)
            record = StepRecord(result=msgspec.Raw(_encode(make())), by=self.by)
            await self.keep(self._message(subject, record))
        return msgspec.json.decode(record.result)

    async def sleep(self, duration: Seconds, name: str) -> None:
        """Return when the time is over: here, or in a later delivery."""
        what = f"job {self.records.id}: the seconds of sleep()"
        if (limit := seconds(what, duration)) > LONGEST_SLEEP_S:
            raise ConfigError(f"{what}: {limit:g} s are more than 300 days; enqueue another job with at=")
        self._sleeps += 1
        subject = self.records.at("sleep", token_of(name or f"{self._sleeps}"))
        self._use(subject, f"sleep {name!r}")
        record = await self._known(subject, f"sleep {name or self._sleeps!r}")
        await self.make_sure()
        await self.queue.time.refresh(self.queue.names.jobs)
        now = self.queue.time.now()
        if self.records.undoing is not None:
            if limit > self._longest_nap if record is None else record.until > now:
                await self.undo.stop(subject)
            return
        until = now + int(limit * 1e9) if record is None else record.until
        # The clock may have been set back since the record was read.
        left = min((until - now) / 1e9, limit)
        await self._rest(left, "it sleeps", subject, self._with_code(StepRecord(until=until, by=self.by)))

    async def _rest(self, left: float, reason: str, subject: str, record: StepRecord) -> None:
        """Return after ``left`` seconds, or give the job back for so long, with a record of that."""
        if left <= self._longest_nap:
            await self.queue.clock.sleep(max(left, 0.0))
            return
        if self.records.has_undo:
            # Whoever cancels it ends the wait.
            await self.wait_on(reason, CANCEL, subject, record, 0, left)
        # Once: processes whose clocks differ would move its time on, each from where the other one had put it.
        kept = [] if subject in await self.known_steps() else [Outgoing(subject, _encode(record))]
        self._fall_asleep(PutOff(min(left, LONGEST_WAIT_S), reason, began=True), kept)
        # The worker cancels the job, which starts again.
        await asyncio.get_running_loop().create_future()

    # --- what is remembered

    async def changed(self, name: str) -> bool:
        """Whether the job has not been past this point without asking; remembered if so."""
        what = f"job {self.records.id}: the name of a change"
        subject = self.records.at("changed", token_of(checked_text(what, name)))
        known = await self.known_steps()
        if subject not in known:
            if any(one not in self.seen and one.split(".", 6)[5] in _ORDERED for one in known):
                return False
            known[subject] = record = StepRecord(by=self.by)
            await self.keep(Outgoing(subject, _encode(record)))
        return True

    async def _known(self, subject: str, what: str) -> StepRecord | None:
        """Return the record of what the function has come to; None if it is new. Raises as `check_order`."""
        record = (await self.known_steps()).get(subject)
        self.seen.add(subject)
        if record is None:
            self.check_order(what)
        return record

    def check_order(self, what: str) -> None:
        """Raise JobArgumentsError if something new comes before what was done with other code."""
        if self.records.undoing is not None:
            return
        if self._task != owner():
            # Several things are done at once.
            self._task = None
            return
        for subject, record in (self._done or {}).items():
            if record.code and record.code != self._code and subject not in self.seen:
                kind, name, *_ = subject.removeprefix(self.queue.names.memory_subject(self.records.id, "")).split(".")
                raise JobArgumentsError(
                    self.records.envelope.job,
                    f"its code has changed, and {what} comes before {kind} {decode_key(name)!r}, which it has done: "
                    "keep what it has done in its order, and ask context.changed() before what is new",
                    is_stored=True,
                )

    async def _begin(self, subject: str) -> None:
        """Make sure that the job is held, before something that it does not remember."""
        if self.records.undoing is not None:
            await self.undo.stop(subject)
        await self.make_sure()

    async def known_steps(self) -> dict[str, StepRecord]:
        """Return what the job remembers, by subject. Raises JobCancelledError, LeaseLostError."""
        self.is_used = True
        async with self._lock:
            if self._done is None:
                self._done = await until_answered(self.queue.clock, self._read, self.make_sure)
        if self._cancelled is not None and self.records.undoing is None:
            raise self._cancelled
        return self._done

    async def look_for_undo(self) -> None:
        """Find out, after an error, whether earlier attempts have registered something to undo."""
        if self._done is None:
            try:
                await self.known_steps()
            except PeltonError:
                # Whoever gets the job next finds out.
                self.records.has_undo = True

    async def _read(self) -> dict[str, StepRecord]:
        names, found, stale = self.queue.names, dict[str, StepRecord](), dict[str, StepRecord]()
        stream = await self.queue.jet.stream(names.running)
        for message, jumped_ns in await last_messages(self.queue.backend, stream, names.traces_of(self.records.id)):
            if names.is_signal(message.subject):
                token = names.signal_in(message.subject)[1]
                if token == CANCEL:
                    reason = message.data.decode(errors="replace")
                    self._cancelled = JobCancelledError(self.records.id, self.records.envelope.key, reason)
                elif token == CALLS:
                    self.told[message.subject.rpartition(".")[2]] = message.seq, message.data
            elif (tokens := names.tokens_in(message.subject))[0] not in ("progress", "round"):
                record = decode_step(message.data)
                if record.until and jumped_ns:
                    record = msgspec.structs.replace(record, until=record.until + jumped_ns)
                (found if message.subject == self.records.at(*tokens) else stale)[message.subject] = record
        if stale:
            await forget_rounds(stream, names, self.records.id, stale, self.told)
        self.records.has_undo |= any(one.split(".", 6)[5] == "undo" for one in found)
        return found

    async def keep(self, *messages: Outgoing) -> None:
        """Store records while the job is held; in a store file several together. Raises LeaseLostError."""
        if len(messages) > 1 and not self.keeps_together:
            for message in messages:
                await self.keep(message)
            return
        keep = partial(self._held.source.keep, self.records.delivered, *messages)
        await self.make_sure()
        try:
            await until_answered(self.queue.clock, keep, self.make_sure)
        except AckRejectedError as refused:
            raise self._lost_error(refused) from refused
        except MessageTooLargeError as refused:
            # Another attempt would do the same work again, and be refused again.
            raise JobResultError(f"{self.records.envelope.job}, a step", str(refused)) from refused
        except WrongLastSequenceError as refused:
            if len(messages) > 1:
                raise
            # Ours, if the answer to an earlier try was lost.
            stored = await last_of(await self.queue.jet.stream(self.queue.names.running), messages[0].subject)
            if stored is None or stored.data != messages[0].data:
                raise self._lost_error(refused) from refused

    # --- names and errors

    def _subject_of(self, name: str) -> str:
        checked_text(f"job {self.records.id}: the name of a step", name)
        subject = self.records.at("step", token_of(name))
        self._use(subject, f"step {name!r}")
        return subject

    def _use(self, subject: str, what: str) -> None:
        if subject in self._used:
            raise ConfigError(
                f"job {self.records.id} ({self.records.envelope.job!r}) comes to {what} twice: give each a name of "
                "its own, such as 'charge 2'"
            )
        self._used.add(subject)

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        tracing = self.queue.backend.tracing
        try:
            with nullcontext() if tracing is None else tracing.stepping(name):
                yield
        except BaseException:
            # What comes after a failed step is not done where that succeeds.
            self._task = None
            raise

    def _message(self, subject: str, record: StepRecord) -> Outgoing:
        return Outgoing(subject, _encode(self._with_code(record)))

    def _with_code(self, record: StepRecord) -> StepRecord:
        return msgspec.structs.replace(record, code=self._code if self._task == owner() else "")

    def _check(self) -> None:
        if self._held.is_doubtful(self._job):
            raise self._lost_error("")
        if self._is_over:
            raise ConfigError(f"job {self.records.id}: its function has returned: await its steps before it does")

    async def make_sure(self) -> None:
        await self._held.is_sure(self._job)
        self._check()

    def _lost_error(self, why: object) -> LeaseLostError:
        return LeaseLostError(self.records.id, self.records.envelope.key, str(why))


@lru_cache(256)
def _digest_of(code: CodeType) -> str:
    """Return a text that is another one if what a function does, or its inner functions do, is written otherwise."""
    parts = [_digest_of(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{crc32(code.co_code + repr((code.co_names, parts)).encode(errors='replace')):08x}"


async def _try_to_keep(keeping: Coroutine[Any, Any, Any]) -> None:
    with suppress(PeltonError):
        await keeping


@lru_cache(256)
def codec_of(function: Callable[..., Any], what: str) -> ResultCodec:
    try:
        kind = get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        # Not a plain function, or with names that cannot be looked up: its result is what JSON gives.
        kind = Any
    return ResultCodec(what, kind)
