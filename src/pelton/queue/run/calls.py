"""Other jobs as steps of a running one: each is enqueued once, and its value or its error is remembered.

Design (docs/decisions/0041): The id and the place of a called job follow from its caller and the number of the call, as
those of a node of a flow do. In a store file it is stored together with the record that it is called; on a cluster
before that, where its place, or its message id, refuses it a second time. Its end is a signal to its caller, by which
the caller is due again. It has the outcome, which is looked up in the history, where the first one counts.

Calls are told apart by their order, so a function has to make them in the same order each time. A job that was begun by
another version of its function waits for a worker that has that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import msgspec

from pelton.api import ConfigError, JobArgumentsError, JobFailedError, Outgoing, PeltonError, WrongLastSequenceError
from pelton.jet.stream import last_of
from pelton.queue.enqueuer import QueueWithJobs, announce_messages, ring
from pelton.queue.job_message import JobMessage
from pelton.queue.model.naming import CALLS, CANCEL, QueueNames, decode_key
from pelton.queue.model.options import whole
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import NOTHING, FlowPlace, JobStep, StepRecord, decode_outcome, decode_step
from pelton.queue.scan import stored_messages, unfinished_job

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.job import JobCall
    from pelton.queue.model.options import JobOptions
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.steps import JobSteps

R_co = TypeVar("R_co", covariant=True)

_encode: Final = msgspec.json.Encoder().encode
# For how long a caller waits at most whose job has told its end, and whose outcome is about to be stored.
_OUTCOME_S: Final = 0.5
# With a bound on how many are enqueued at a time, it starts again when this part of them has ended.
_REFILL: Final = 4
# Of one round.
_MOST_CALLS: Final = 1 << 20
_REMEMBERED: Final = (
    "step", "sleep", "wait", "received", "call", "called", "event", "changed", "fixed", "undo", "undone",
)  # fmt: skip
_NOT_OF_CALLS: Final = ("unique", "id", "idempotency_key")


class CalledJob(Generic[R_co]):
    """A job that a running job calls: await it for its value. Made by `JobContext.call`."""

    __slots__ = ("_calls", "_gather", "call", "is_detached", "number")

    def __init__(self, calls: JobCalls | None, call: JobCall, number: int) -> None:
        self._calls = calls
        self.call: JobCall = call
        self.number: int = number
        self.is_detached: bool = False
        # Of a plain function.
        self._gather: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<CalledJob {self.number} {self.call.job!r}>"

    def __await__(self) -> Generator[Any, None, R_co]:
        if self._calls is None:
            raise ConfigError(f"{self!r} is not awaited in a plain function: take its value()")
        return self._calls.value(self).__await__()

    def blocks(self, gather: Callable[..., Any]) -> None:
        """Have it called by :meth:`value`; for the worker."""
        self._gather = gather

    def value(self) -> R_co:
        """Call the job, and return its value: in a plain function, an async one awaits the call. Raises ConfigError."""
        if self._gather is None:
            raise ConfigError(f"{self!r} is awaited in an async function: it has its value() in a plain one")
        value: R_co = self._gather(self)[0]
        return value

    def detach(self) -> CalledJob[R_co]:
        """Let the job go on if its caller ends before it: otherwise it is cancelled then."""
        self.is_detached = True
        return self


class CallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a job was called: where it is."""

    queue: str
    id: str
    job: str
    is_detached: bool = False


_record: Final = msgspec.json.Decoder(CallRecord).decode


class JobCalls:
    """The calls of other jobs by one attempt."""

    def __init__(self, steps: JobSteps) -> None:
        records = steps.records
        self._steps = steps
        self._queue: QueueContext = steps.queue
        self._id = records.id
        self._key = records.envelope.key
        self._job = records.envelope.job
        self._what = f"job {records.id} ({self._job!r})"
        # A job of an earlier round is another one.
        self.number: int = records.round * _MOST_CALLS
        # That of all calls.
        steps.seen.add(records.at("wait", CALLS))

    def new(self, call: JobCall) -> CalledJob[Any]:
        """Return the next call. Raises ConfigError."""
        for name in _NOT_OF_CALLS:
            if getattr(call.options, name):
                raise ConfigError(f"{self._what} calls {call.job!r}: leave {name} out: a call is made once anyway")
        home = self._home_of(call)
        if home.exclusive and home.name == self._queue.name and call.options.key and call.options.key == self._key:
            raise ConfigError(
                f"{self._what} calls {call.job!r} with its own key {self._key!r}, and would wait for itself: "
                "give it another key"
            )
        self.number += 1
        return CalledJob(self, call, self.number)

    async def value(self, called: CalledJob[Any]) -> Any:
        """Return what a job returned, here or in a later delivery. Raises JobFailedError."""
        return (await self.gather((called,), None, return_exceptions=False))[0]

    async def gather(
        self, calls: Sequence[CalledJob[Any]], at_once: int | None, *, return_exceptions: bool
    ) -> list[Any]:
        """Return what jobs returned, here or in a later delivery; at most ``at_once`` are enqueued at a time."""
        room = len(calls) if at_once is None else whole(f"{self._what}: at_once of gather()", at_once)
        known = await self._steps.known_steps()
        await self._steps.make_sure()
        begun = self._known_calls(calls, known)
        is_late = self._steps.records.undoing is None and await self._receive(begun, known)
        ends = [known.get(self._steps.records.at("called", one.number)) for one in calls]
        values = [None if end is None else _value_of(one, end) for one, end in zip(calls, ends, strict=True)]
        for value in values:
            if isinstance(value, JobFailedError) and not return_exceptions:
                raise value
        if all(end is not None for end in ends):
            return values
        waits = [one for one, end in zip(calls, ends, strict=True) if end is None]
        if self._steps.records.undoing is not None:
            self._steps.check_order(f"the call of {waits[0].call.job!r}")
            await self._steps.undo.stop("")
        new = [one for one in waits if one not in begun]
        begins = new[: max(room - (len(waits) - len(new)), 0)]
        if await self._begin(begins, known):
            return await self.gather(calls, at_once, return_exceptions=return_exceptions)
        # It starts again when all have ended that it waits for, or enough for others to take their place.
        unfinished = len(waits) - len(new) + len(begins)
        enough = unfinished if len(begins) == len(new) else unfinished // _REFILL or 1
        return await self._wait(len(waits), enough, _OUTCOME_S if is_late else None)

    # --- what is known

    @property
    def _names(self) -> QueueNames:
        return self._queue.names

    def _known_calls(
        self, calls: Sequence[CalledJob[Any]], known: dict[str, StepRecord]
    ) -> dict[CalledJob[Any], CallRecord]:
        """Return where the jobs are that were called before."""
        begun: dict[CalledJob[Any], CallRecord] = {}
        for one in calls:
            self._steps.seen.add(self._steps.records.at("call", one.number))
            if (step := known.get(self._steps.records.at("call", one.number))) is not None:
                begun[one] = record = _record(step.result)
                if record.job != one.call.job:
                    # Of another version of the function: given back, it waits for a worker that has that.
                    was = f"its call {one.number} is of {one.call.job!r}, and was of {record.job!r} before"
                    raise JobArgumentsError(self._job, was, is_stored=True)
        return begun

    async def _receive(self, begun: dict[CalledJob[Any], CallRecord], known: dict[str, StepRecord]) -> bool:
        """Remember how called jobs have ended; return whether one has told so whose outcome is not stored."""
        is_late, kept = False, list[Outgoing]()
        for one, record in begun.items():
            subject = self._steps.records.at("called", one.number)
            if subject in known or record.id not in self._steps.told:
                continue
            if (outcome := await self._outcome_of(record, self._steps.told[record.id][1])) is None:
                is_late = True
                continue
            known[subject] = step = StepRecord(result=msgspec.Raw(outcome), by=self._steps.by)
            kept.append(Outgoing(subject, _encode(step)))
        if kept:
            await self._steps.keep(*kept)
        return is_late

    async def _outcome_of(self, record: CallRecord, told: bytes) -> bytes | None:
        """Return the outcome that counts; None if it is about to be stored."""
        names, jet = QueueNames(record.queue), self._queue.jet
        history = await jet.stream(names.history)
        # Mostly the first is right, and quicker.
        for subject in (names.ending_subject(decode_outcome(told).state, record.id), names.outcomes_of(record.id)):
            if (stored := await last_of(history, subject)) is not None:
                return stored.data
        # Removed from the history, if the job is not there either.
        return told if await unfinished_job(await jet.stream(names.jobs), names, record.id) is None else None

    # --- calling

    async def _begin(self, calls: Sequence[CalledJob[Any]], known: dict[str, StepRecord]) -> bool:
        """Enqueue jobs, and remember where they are; return whether one has ended already.

        On a cluster, an attempt that died may have enqueued some, and could not remember it: they are not enqueued
        again.
        """
        if calls:
            self._steps.check_order(f"the call of {calls[0].call.job!r}")
        jobs: list[tuple[QueueContext, Outgoing, JobOptions]] = []
        records: list[Outgoing] = []
        for one in calls:
            home = self._home_of(one.call)
            if one.call.options.is_timed:
                await home.time.refresh(home.names.jobs)
            job = self._message_of(one, home)
            record = CallRecord(home.name, job_id_in(job.data, 0), one.call.job, one.is_detached)
            subject = self._steps.records.at("call", one.number)
            known[subject] = step = StepRecord(result=msgspec.Raw(_encode(record)), by=self._steps.by)
            records.append(Outgoing(subject, _encode(step)))
            if record.id not in self._steps.told:
                jobs.append((home, job, one.call.options))
        if records:
            await self._store([job for _, job, _ in jobs], records)
        for home, job, options in jobs:
            await announce_messages(home, (job,))
            await ring(home, (options,))
        return len(jobs) < len(records)

    async def _store(self, jobs: Sequence[Outgoing], records: Sequence[Outgoing]) -> None:
        if self._steps.keeps_together:
            # Refused if one is there, which somebody has stored through a server.
            with suppress(WrongLastSequenceError):
                await self._steps.keep(*jobs, *records)
                return
        for answer in await self._queue.backend.publish_apart(jobs):
            if isinstance(answer, PeltonError) and not isinstance(answer, WrongLastSequenceError):
                raise answer
        await self._steps.keep(*records)

    def _message_of(self, one: CalledJob[Any], home: QueueContext) -> Outgoing:
        call, form = one.call, JobMessage(home.names, one.call.job, exclusive=home.exclusive)
        form.check(call.options)
        place = FlowPlace(f"{self._queue.name}/{self._id}", one.number)
        return form.of_flow(call.args, call.options, home.time.now(), call.meta, place, 0)

    def _home_of(self, call: JobCall) -> QueueContext:
        """Return the queue of a called job: its own, or that of its caller for one of a `Jobs`. Raises ConfigError."""
        if call.queue is None or call.queue.name == self._queue.name or self._steps.records.undoing is not None:
            return self._queue
        home = call.queue._enqueuer.queue if isinstance(call.queue, QueueWithJobs) else None
        if home is None or home.backend is not self._queue.backend:
            raise ConfigError(f"{self._what} calls {call.job!r} of another opening: open both queues through the same")
        return home

    async def _wait(self, number: int, enough: int, limit: float | None) -> NoReturn:
        """Give the job back until ``enough`` of those that it waits for have ended; for ``limit`` seconds at most."""
        wanted = len(self._steps.told) + enough if limit is None else 0
        last = max((seq for seq, _ in self._steps.told.values()), default=0)
        subject, reason = (
            self._steps.records.at("wait", CALLS),
            f"it waits for {number} jobs that it has called",
        )
        await self._steps.wait_on(reason, CALLS, subject, StepRecord(by=self._steps.by), last, limit, wanted)


def _value_of(called: CalledJob[Any], ended: StepRecord) -> Any:
    """Return the value of a job that has ended, or its error."""
    outcome, results = decode_outcome(ended.result), called.call.results
    try:
        value = outcome.value()
    except JobFailedError as error:
        return error
    return value if results is None else results.decode(outcome.result)


async def awaited_calls(stream: Stream, names: QueueNames, job_id: str) -> AsyncGenerator[CallRecord]:
    """Iterate over the jobs that a job has called and still waits for, and that are not to go on without it."""
    async with aclosing(stored_messages(stream, names.memory_subject(job_id, "call", ">"))) as stored:
        async for one in stored:
            record, before, number = _record(decode_step(one.data).result), *one.subject.rsplit(".call.", 1)
            if not record.is_detached and await last_of(stream, f"{before}.called.{number}") is None:
                yield record


async def history_of(stream: Stream, names: QueueNames, job_id: str) -> list[JobStep]:
    """Return what a job remembers, and was sent, in the order in which that was stored."""
    found = list[JobStep]()
    async with aclosing(stored_messages(stream, names.traces_of(job_id))) as stored:
        async for one in stored:
            kind, *tokens = names.tokens_in(one.subject)
            name, number = decode_key(tokens[0]) if tokens else "", tokens[1] if len(tokens) > 1 else ""
            if tokens and tokens[0] in (CALLS, CANCEL):
                continue
            if kind == "signal":
                step = StepRecord(result=msgspec.Raw(one.data or NOTHING), seq=one.seq)
            elif kind in _REMEMBERED:
                step = decode_step(one.data)
                if kind in ("call", "called"):
                    name = str(int(name) % _MOST_CALLS)
            else:
                continue
            found.append(
                JobStep(
                    kind=kind,
                    name=name,
                    number=int(number) if number.isdigit() else 0,
                    at=one.time_ns,
                    until=step.until,
                    seq=step.seq,
                    value=step.result,
                    code=step.code,
                )
            )
    return found
