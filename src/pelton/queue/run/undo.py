"""What undoes a job that fails for good, or is cancelled: a saga (docs/decisions/0041).

Functions are not stored, so the job is started once more. What it remembers returns as before, and registers again what
undoes it; at the first thing that is not remembered, its function ends. What it has registered then runs, the last one
first, and each is remembered as it is done. Afterwards the job ends as it was to end.

A step that failed, after which the function went on, is not remembered; the record of what is registered after it tells
its error, which is raised again. Whoever cancels a job with a memory does not end it, but orders that, and recalls it
by a signal that ends all its waits.

A job that begins anew (`Continue`) has a round of its own, in which it remembers nothing of the earlier ones.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from pelton.api import ConfigError, JobError, LeaseLostError, Outgoing
from pelton.api.job_errors import describe
from pelton.jet.registers import until_answered
from pelton.jet.stream import last_of
from pelton.queue.model.naming import CALLS, token_of
from pelton.queue.model.records import AfterAttempt, Again
from pelton.queue.model.states import Finish, StepRecord, decode_step

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.job import Job
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.options import JobRules
    from pelton.queue.model.records import AttemptRecords
    from pelton.queue.registry import QueueContext

_encode: Final = msgspec.json.Encoder().encode
# By subject of a step: the module and the name of the class of its error, and its text.
Failures = dict[str, tuple[str, str, str]]
_failures: Final = msgspec.json.Decoder(Failures | None).decode
# How often other tasks of the function have their turns, to come to what they have registered.
_TURNS: Final = 100
_AGAIN_S: Final = 1.0
_PATIENCE: Final = 2


class _Called(msgspec.Struct):
    """Of the record of a call."""

    id: str


_called: Final = msgspec.json.Decoder(_Called).decode


class JobUndone(BaseException):
    """The function of a job that is undone has come to what it has not done: it is not to be caught as an error."""


class _Registered(NamedTuple):
    key: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]


class JobMemory(Protocol):
    """What one attempt of a job remembers; as of `JobSteps`."""

    queue: QueueContext
    records: AttemptRecords
    by: str

    async def known_steps(self) -> dict[str, StepRecord]:
        """Return it all, by subject."""

    async def keep(self, *messages: Outgoing) -> None:
        """Store records."""

    async def try_often(
        self, what: str, rules: JobRules, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function until it returns, as often as ``rules`` say."""


class JobUndo:
    """What one attempt of a job has registered to undo what it did."""

    def __init__(self, steps: JobMemory) -> None:
        self._steps = steps
        self._registered: list[_Registered] = []
        self._numbers: dict[str, int] = {}
        self._failures: Failures = {}

    def register(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, None]:
        """Register a function at once, and return what stores that."""
        records = self._steps.records
        if not callable(function):
            raise ConfigError(f"job {records.id}: on_failure takes a function and its arguments, not {function!r:.80}")
        name = token_of(getattr(function, "__qualname__", type(function).__name__)[-100:])
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        one = _Registered(f"{name}.{number}", function, args, kwargs)
        self._registered.append(one)
        records.has_undo = True
        return self._remember(self._subject("undo", one.key))

    async def _remember(self, subject: str) -> None:
        known = await self._steps.known_steps()
        if subject not in known and self._steps.records.undoing is None:
            record = StepRecord(result=msgspec.Raw(_encode(self._failures)), by=self._steps.by)
            await self._steps.keep(Outgoing(subject, _encode(record)))
            known[subject] = record

    @contextmanager
    def noting(self, subject: str) -> Iterator[None]:
        """Note the error of a step, should the function go on after it."""
        try:
            yield
        except Exception as error:
            kind = type(error)
            self._failures[subject] = kind.__module__, kind.__qualname__, describe(error).partition(": ")[2]
            raise

    def _subject(self, kind: str, key: str) -> str:
        return self._steps.records.at(kind, key)

    # --- undoing

    def missing(self, known: dict[str, StepRecord]) -> set[str]:
        """Return the subjects of what earlier attempts have registered, and this one has not."""
        return _undo_records(known) - {self._subject("undo", one.key) for one in self._registered}

    async def stop(self, subject: str) -> None:
        """End the function of a job that is undone, at what it does not remember; or raise the error of a step."""
        known = await self._steps.known_steps()
        for record in _undo_records(known):
            if (failure := (_failures(known[record].result) or {}).get(subject)) is not None:
                raise _error_of(*failure)
        for _ in range(_TURNS):
            if not self.missing(known):
                break
            await asyncio.sleep(0)
        raise JobUndone

    async def run(self, finish: Finish, rules: JobRules, call: Callable[[], Coroutine[Any, Any, Any]]) -> AfterAttempt:
        """Start the function, and undo what it has registered; return what follows."""
        records, why = self._steps.records, "it returned"
        try:
            await call()
        except (JobUndone, Exception) as error:
            why = describe(error)
        known = await self._steps.known_steps()
        missing = self.missing(known)
        if missing and records.attempt < _PATIENCE * rules.max_attempts:
            return Again(_AGAIN_S, f"{finish.error}; undoing it, its function does not come as far as before: {why}")
        left = [f"{len(missing)} undos were not found: {why}"] if missing else []
        for one in reversed(self._registered):
            if (subject := self._subject("undone", one.key)) not in known:
                if error_text := await self._undo(one, rules):
                    left.append(f"{one.key} failed: {error_text}")
                else:
                    await self._steps.keep(Outgoing(subject, _encode(StepRecord(by=self._steps.by))))
        return msgspec.structs.replace(finish, error="; not undone: ".join([finish.error, *left]))

    async def _undo(self, one: _Registered, rules: JobRules) -> str:
        """Undo one thing, as often as the job is tried; return why that failed, or nothing."""
        try:
            await self._steps.try_often(f"undo {one.key}", rules, one.function, one.args, one.kwargs)
        except LeaseLostError:
            raise
        except Exception as error:
            return describe(error)
        return ""


def _undo_records(known: dict[str, StepRecord]) -> set[str]:
    return {subject for subject in known if subject.split(".", 6)[5] == "undo"}


def _error_of(module: str, name: str, text: str) -> Exception:
    """Return an error of its class, if this program has that, so that whoever caught it catches it again."""
    kind: Any = reduce(lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(module))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind.__new__(kind, text)
    return JobError(f"{name}: {text}")


async def has_registered(queue: QueueContext, job_id: str) -> bool:
    """Whether a job has registered what undoes it."""
    running = await queue.side_to_read(queue.names.running)
    return await last_of(running, queue.names.memory_subject(job_id, "undo", ">")) is not None


async def forget_rounds(
    stream: Stream, names: QueueNames, job_id: str, stale: dict[str, StepRecord], told: dict[str, tuple[int, bytes]]
) -> None:
    """Remove what a job has left in earlier rounds; before that, the signals that it has received in them."""
    read = dict[str, int]()
    for subject, record in stale.items():
        kind, *tokens = names.tokens_in(subject)
        if kind == "received":
            signals = names.signals_of(job_id, tokens[0])
            read[signals] = max(read.get(signals, 0), record.seq)
        elif kind == "call" and (ended := told.pop(child := _called(record.result).id, None)) is not None:
            read[names.memory_subject(job_id, "signal", CALLS, child)] = ended[0]
    await asyncio.gather(*(stream.purge(filter=signals, seq=last + 1) for signals, last in read.items() if last))
    await asyncio.gather(*(stream.purge(filter=subject) for subject in stale))


async def learn_round(queue: QueueContext, records: AttemptRecords) -> None:
    """Find out whether a job has begun anew, and with which arguments."""
    running = await queue.jet.stream(queue.names.running)
    if (stored := await last_of(running, queue.names.memory_subject(records.id, "round"))) is not None:
        record = decode_step(stored.data)
        records.round, records.round_seq = record.seq, stored.seq
        records.envelope = msgspec.structs.replace(records.envelope, args=record.result)


async def is_to_undo(
    queue: QueueContext, records: AttemptRecords, definition: Job[Any, Any] | None, decision: AfterAttempt | None
) -> bool:
    """Whether a job is started once more before it ends, to undo what it did; its records tell so then.

    Ask it of one that was delivered before: any other has done nothing.
    """
    if definition is None or not definition.context_parameter or not isinstance(decision, Finish):
        return False
    most = definition.rules.max_attempts
    # One that has only steps is not started once more: it may be what kills its workers.
    has_undo = await until_answered(queue.clock, partial(has_registered, queue, records.id))
    if not has_undo or records.attempt > _PATIENCE * most:
        return False
    records.undoing = decision
    return True


def undo_again(records: AttemptRecords, error: BaseException) -> Again:
    """Return what follows an attempt to undo a job that could not be ended."""
    assert records.undoing is not None, "it is undone"
    return Again(_AGAIN_S, f"{records.undoing.error}; undoing it: {describe(error)}")
