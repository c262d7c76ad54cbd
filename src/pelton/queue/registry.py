"""Declaring jobs: the decorator, batches, hooks, jobs without an open store; and the open queue that has them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from pelton.api import AckOp, ConfigError, Delivered, PeltonError, StreamNotFoundError, Unsettled, UnsettledGroup
from pelton.jet.registers import Outage, can_pass
from pelton.queue.job import (
    AsyncContextJob,
    AsyncJob,
    Job,
    JobCall,
    JobDecorator,
    JobHooks,
    SyncContextJob,
    SyncJob,
    job_name,
    job_of,
)
from pelton.queue.job_message import JobArguments, JobCodec, RunContext, checked_codec
from pelton.queue.model.options import (
    DEFAULT_BACKOFF,
    DEFAULT_MAX_ATTEMPTS,
    BackoffRule,
    checked_text,
    job_rules,
    seconds,
    whole,
)

if TYPE_CHECKING:
    from pelton.api import Backend
    from pelton.api.times import Seconds
    from pelton.jet import Stream, Streams
    from pelton.jet.streams import StoreTime
    from pelton.queue.job import JobQueue
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.options import JobRules
    from pelton.runtime import Clock, Runtime

_log: Final = logging.getLogger("pelton.queue")

T = TypeVar("T")
R = TypeVar("R")


class BatchJob(Job[[T], R], Generic[T, R]):
    """A function that is called with the items of many jobs: up to ``size``, of those that come in ``wait`` seconds.

    ``await job.enqueue(item)`` puts one item into the queue.
    """

    def __init__(
        self,
        queue: JobQueue | None,
        function: Callable[..., Any],
        name: str,
        rules: JobRules,
        size: int,
        wait: float,
        hooks: JobHooks,
        codec: JobCodec | None = None,
    ) -> None:
        super().__init__(queue, function, name, rules, _arguments_of_one(name, function, codec), hooks)
        self.size = size
        self.wait = wait

    def __call__(self, items: list[T], /) -> Coroutine[Any, Any, Sequence[R | BaseException] | None]:
        """Call the function itself, here and now."""
        returned: Coroutine[Any, Any, Sequence[R | BaseException] | None] = self.function(items)
        return returned


class BatchDecorator(Protocol):
    """What ``queue.job(batch=...)`` returns: makes a function of a list the job of each of its items."""

    @overload
    def __call__(self, function: Callable[[list[T]], Coroutine[Any, Any, None]], /) -> BatchJob[T, None]: ...
    @overload
    # Exception is named for checkers that take R for all that is not named.
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, Sequence[R | Exception | BaseException] | None]], /
    ) -> BatchJob[T, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> BatchJob[Any, Any]:
        """Return the function as a job."""


def _arguments_of_one(name: str, function: Callable[..., Any], codec: JobCodec | None) -> JobArguments:
    """Return the arguments of one job: an ``item`` of the list that the function takes."""
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"job {name!r}: batch= is for async functions: write async def, with asyncio.to_thread for what blocks"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1:
        raise ConfigError(f"job {name!r}: the function of a batch takes one parameter, the list of items")
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"job {name!r}: its annotations can't be read ({error})") from None

    def one(item: Any) -> Any: ...

    one.__annotations__ = {
        "item": _element(hints.get(parameters[0].name, Any)),
        "return": _element(hints.get("return", Any)),
    }
    return JobArguments(name, one, codec)


def _element(kind: Any) -> Any:
    """Return the type of the items of a list; Any for anything else, and for items that may be errors."""
    if not (isinstance(origin := get_origin(kind), type) and issubclass(origin, Sequence)):
        return Any
    (element, *_) = (*get_args(kind), Any)
    kinds = get_args(element) or (element,)
    return Any if any(isinstance(one, type) and issubclass(one, BaseException) for one in kinds) else element


# --- declaring jobs: the decorator, and the jobs that a program declares without an open store

P = ParamSpec("P")
C = TypeVar("C", bound=RunContext)
F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Callable[[JobCall], JobCall | None])


class DeclaresJobs:
    """What a queue and a `Jobs` have in common: the decorator ``job``, and hooks."""

    def __init__(self, codec: JobCodec | None = None, version: str = "") -> None:
        self.hooks: JobHooks = JobHooks(version)
        self._codec = codec

    def _declare(self, function: Callable[..., Any], name: str) -> tuple[JobQueue | None, str]:
        """Return the queue of a new job, if it has one, and the job's checked name. Raises ConfigError."""
        raise NotImplementedError

    def _add(self, job: Job[Any, Any]) -> None:
        """Register a job. Raises ConfigError if its name is taken."""
        raise NotImplementedError

    # They overlap because an async function is also one that returns a coroutine: the first that fits counts.
    @overload
    def job(self, function: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /) -> AsyncContextJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, function: Callable[Concatenate[C, P], R], /) -> SyncContextJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> SyncJob[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str = ...,
        max_attempts: int = ...,
        backoff: BackoffRule = ...,
        permanent: type[BaseException] | Sequence[type[BaseException]] = ...,
        timeout: Seconds | None = ...,
        process: bool = ...,
    ) -> JobDecorator: ...

    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str = ...,
        max_attempts: int = ...,
        backoff: BackoffRule = ...,
        permanent: type[BaseException] | Sequence[type[BaseException]] = ...,
        timeout: Seconds | None = ...,
        batch: int,
        wait: Seconds = ...,
    ) -> BatchDecorator: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str = "",
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        backoff: BackoffRule = DEFAULT_BACKOFF,
        permanent: type[BaseException] | Sequence[type[BaseException]] = (),
        timeout: Seconds | None = None,
        process: bool = False,
        batch: int | None = None,
        wait: Seconds = 0.1,
    ) -> Any:
        """Register a function, async or not, as a job; a decorator, with or without arguments.

        ``name`` (default: the function's) is stored with every job: keep it when you rename the function. A job
        is tried up to ``max_attempts`` times, a worker's death included, with ``backoff`` between: a `Backoff`, a
        list of seconds, or a function of the attempt and its error. Errors in ``permanent``, and PermanentJobError,
        are not retried. ``timeout`` limits one attempt of an async function, or of one in a process. ``process``: a
        function that is not async runs in a child process of the worker, which is killed if the job is cancelled or
        takes too long, and which may crash without harm to other jobs; define it at the top level of a module.
        ``batch``: an async function of a list is called with the items of up to so many jobs, which came within
        ``wait`` seconds, and returns a list of results, in which an exception is the error of its job.
        Raises ConfigError.
        """

        def register(target: Callable[..., Any]) -> Job[Any, Any]:
            queue, own_name = self._declare(target, name)
            rules = job_rules(f"job {own_name!r}", max_attempts, backoff, permanent, timeout)
            if process and self._codec is not None:
                raise ConfigError(f"job {own_name!r}: process=True is for jobs without a codec; a child reads JSON")
            job: Job[Any, Any]
            if batch is None:
                job = job_of(queue, target, own_name, rules, self.hooks, self._codec, process)
            else:
                what = f"job {own_name!r}"
                if process:
                    raise ConfigError(f"{what}: batch= and process= can't be together")
                size, longest = whole(f"{what}: batch", batch), seconds(f"{what}: wait", wait)
                job = BatchJob(queue, target, own_name, rules, size, longest, self.hooks, self._codec)
            self._add(job)
            return job

        return register if function is None else register(function)

    def lifespan(self, function: F) -> F:
        """Put something around the workers of these jobs, such as a session or a pool; a decorator.

        The async function takes the open store and yields once, as for ``contextlib.asynccontextmanager``, or returns
        an async context manager. A plain function that yields gets the blocking face of the store, and runs on threads.
        It is entered once in a process for each open store, before a worker takes a job, and
        left when the last job of the last worker is settled. Jobs find what it yields as ``context.state``. If it
        raises at the start, so does ``work``, and nothing was taken. Raises ConfigError.
        """
        self.hooks.set_lifespan(function)
        return function

    def around_run(self, function: F) -> F:
        """Put something around each run of these jobs, where the function runs; a decorator.

        The function takes the `JobContext` and yields once, as for ``contextlib.contextmanager``, or returns a context
        manager. What the job raises is raised at the ``yield``. Those declared first are outside. Raises ConfigError.
        """
        self.hooks.add_run(function)
        return function

    def on_enqueue(self, function: E) -> E:
        """Pass each of these jobs through a function before it is enqueued; a decorator.

        The function takes the `JobCall` and returns another one (``call.with_options(...)``, ``call.with_meta(...)``),
        or None to leave it as it is; what it raises is raised by ``enqueue``. Raises ConfigError.
        """
        self.hooks.add_enqueue(function)
        return function


class Jobs(DeclaresJobs):
    """Jobs that are declared without an open store, for example at module level.

    ``jobs = pelton.Jobs()``, then ``@jobs.job`` on each function, and ``await jet.queue("garage", jobs=jobs)`` to run
    them or enqueue them there: any number of queues may have the same jobs. ``codec`` encodes their arguments and
    results: an object with ``encode(value) -> bytes`` and ``decode(data, type)``; None: JSON. ``version`` names the
    code: a job that has slept or waited goes on with the version that did; without one, all are taken. Raises
    ConfigError.
    """

    def __init__(self, *, codec: JobCodec | None = None, version: str = "") -> None:
        super().__init__(checked_codec(codec), "" if version == "" else checked_text("the version of jobs", version))
        self._by_name: dict[str, Job[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"<Jobs {', '.join(self._by_name) or 'none'}>"

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Any:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Job[Any, Any] | None:
        """Return the job of a name, or None."""
        return self._by_name.get(name)

    def _declare(self, function: Callable[..., Any], name: str) -> tuple[JobQueue | None, str]:
        return None, checked_text("a job's name", name) if name != "" else job_name(function)

    def _add(self, job: Job[Any, Any]) -> None:
        if job.name in self._by_name:
            raise ConfigError(f"there is a job {job.name!r} already; give one of them another name")
        self._by_name[job.name] = job


class JobRegistry:
    """The jobs that one queue knows: its ``own``, by name, and those of every `Jobs` it was opened with."""

    def __init__(self, queue: str, given: Sequence[Jobs]) -> None:
        self._queue = queue
        self.own: dict[str, Job[Any, Any]] = {}
        self._given = given
        seen: dict[str, Jobs] = {}
        for jobs in given:
            for job in jobs:
                if seen.setdefault(job.name, jobs) is not jobs:
                    raise self._name_taken(job.name)

    def get(self, name: str) -> Job[Any, Any] | None:
        """Return the job of a name, or None if nobody has declared one."""
        known = self.own.get(name)
        if known is None:
            known = next((job for jobs in self._given if (job := jobs.get(name)) is not None), None)
        return known

    @property
    def names(self) -> list[str]:
        """The names of all jobs, sorted."""
        return sorted({*self.own, *(job.name for jobs in self._given for job in jobs)})

    @property
    def versions(self) -> set[str]:
        """The versions of its jobs."""
        return {jobs.hooks.version for jobs in self._given} - {""}

    @asynccontextmanager
    async def living(self, jet: object) -> AsyncGenerator[None]:
        """Be within the lifespans of every `Jobs` it was opened with, for a store."""
        async with AsyncExitStack() as stack:
            for jobs in self._given:
                await stack.enter_async_context(jobs.hooks.living(jet))
            yield

    def add(self, job: Job[Any, Any]) -> None:
        """Register a job of this queue alone. Raises ConfigError if its name is taken."""
        if self.get(job.name) is not None:
            raise self._name_taken(job.name)
        self.own[job.name] = job

    def _name_taken(self, name: str) -> ConfigError:
        return ConfigError(f"queue {self._queue!r} has a job {name!r} already; give one of them another name")


def given_jobs(queue: str, jobs: object) -> list[Jobs]:
    """Return what was given as ``jobs``: None, one `Jobs`, or several. Raises ConfigError."""
    if jobs is None:
        return []
    several = [jobs] if isinstance(jobs, Jobs) else jobs
    if not isinstance(several, list | tuple) or not all(isinstance(one, Jobs) for one in several):
        raise ConfigError(f"queue {queue!r}: jobs is {jobs!r}; give a pelton.Jobs(), or a list of them")
    return list(several)


# --- an open queue, as its rooms pass it down: what it is made of, without what it can do


class Probes(msgspec.Struct, kw_only=True):
    """What a test is told, all optional.

    ``on_error``: of an id and an error of a job, by workers that start later. ``on_stored`` is awaited after each
    enqueue. ``on_idle``: by a worker that would end (``until_idle``), with the seconds until a job may start, or
    infinity; if it returns true, the worker looks again.
    """

    on_error: Callable[[str, BaseException], None] | None = None
    on_stored: Callable[[], Awaitable[None]] | None = None
    on_idle: Callable[[float], bool] | None = None


class QueueContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of an open queue.

    ``lease`` in seconds; ``jobs`` are those it knows; ``source_for`` returns the job source of the worker with
    that name; ``time`` is that of its store, which what is stored counts by.
    """

    jet: Streams
    names: QueueNames
    exclusive: bool
    lease: float
    stats: QueueStats
    begun: BegunLookup
    # Returns a ``JobSource``, of a floor above.
    source_for: Callable[[str], Any]
    jobs: JobRegistry
    time: StoreTime
    probes: Probes = msgspec.field(default_factory=Probes)
    # Returns another queue of the same opening, to be looked at.
    other: Callable[[str], Awaitable[QueueContext]]
    # What was made for it through this opening that most queues do not need.
    prepared: set[str] = msgspec.field(default_factory=set)

    async def side_to_read(self, name: str) -> Stream:
        """Return a side stream, to look for messages of its subjects.

        If it is missing, because an older version made the queue, which is only looked at here: another stream, which
        has none.
        """
        try:
            return await self.jet.stream(name)
        except StreamNotFoundError:
            return await self.jet.stream(self.names.jobs)

    def outage(self, part: str = "", passes: Callable[[Exception], bool] = can_pass) -> Outage:
        """Return the outages of its store, as a ``part`` of a worker notices them."""
        who = f"queue {self.name!r}{part and f' ({part})'}"
        return Outage(_log, self.clock, who, passes, queue=self.name)

    @property
    def name(self) -> str:
        return self.names.queue

    @property
    def backend(self) -> Backend:
        return self.jet.backend

    @property
    def runtime(self) -> Runtime:
        """Clock, randomness, ids and background tasks."""
        return self.jet.runtime

    @property
    def clock(self) -> Clock:
        return self.jet.runtime.clock


# --- what the rooms of a queue ask of each other, and what provides its jobs

Underway = dict[int, Unsettled]
"""Jobs that were taken and have not ended, by sequence."""


class Unlisted(NamedTuple):
    """Jobs that were taken, but servers do not say which: ``number`` of those up to a sequence, by consumer.

    In an exclusive queue, they have no key.
    """

    upto: Mapping[str, int]
    number: int

    def may_have(self, lane: str, seq: int) -> bool:
        """Whether a job may have been taken; in an exclusive queue, one without a key (``QueueNames.lane``)."""
        return seq <= self.upto.get(lane, 0)


ALL_LISTED: Final = Unlisted({}, 0)


class UnderwayCounts(NamedTuple):
    """Jobs that were taken and have not ended: those that a worker holds, by sequence, and how many were given back.

    ``passed``: up to which sequence all jobs of a filter were taken, where that is known.
    """

    taken: Underway
    given_back: Sequence[UnsettledGroup]
    passed: Mapping[str, int] = {}

    @property
    def number(self) -> int:
        """How many all of them are."""
        return len(self.taken) + sum(group.number for group in self.given_back)

    def may_have(self, seq: int) -> bool:
        """Whether a job may be among them."""
        return seq in self.taken or any(group.first_seq <= seq for group in self.given_back)


class UnderwayPart(NamedTuple):
    """Some of the jobs that were taken and have not ended.

    ``sequences``, if any are given; else those that were given back for a cause from the first to the last of
    ``causes`` and are due later than ``due_after``, but at ``due_upto`` if given (wall nanoseconds); (-1, -1) for those
    that a worker holds. At most ``limit``, behind the time and sequence ``after``, by ``due`` or by sequence; or
    ``descending``.
    """

    sequences: tuple[int, ...] = ()
    causes: tuple[int, int] | None = None
    due_after: int = 0
    due_upto: int = 0
    by_due: bool = False
    descending: bool = False
    after: tuple[int, int] | None = None
    limit: int = 1000


class QueueStats(Protocol):
    """How the views of a queue learn what its workers hold."""

    async def underway(self) -> Underway:
        """Return the jobs that were taken and have not ended, by sequence."""

    async def count_underway(self) -> UnderwayCounts:
        """Return how many :meth:`underway` would return, and which of them workers hold."""

    async def select(self, part: UnderwayPart) -> list[Unsettled]:
        """Return some of what :meth:`underway` would return."""

    async def unlisted(self) -> Unlisted:
        """Return which jobs may have been taken that :meth:`underway` does not return; ALL_LISTED if it returns all."""

    async def untouched(self, underway: int) -> int:
        """Return how many jobs were never taken, if so many were taken and have not ended."""


class TakenJob(msgspec.Struct, frozen=True, gc=False):
    """A job for a worker. Its lease counts from ``asked`` (seconds since boot); None means from the request."""

    delivered: Delivered
    asked: float | None = None


Begun = Mapping[int, Collection[int]]
"""The numbers of the deliveries that were begun, and that may not have ended, by the sequence of their jobs."""


class BegunLookup(Protocol):
    """How the views of a queue learn which jobs have begun."""

    async def find_begun(self) -> Begun:
        """Return what any worker has begun by now."""


class Extender(Protocol):
    """Extends leases: a part of ``Backend``."""

    def clone(self) -> Extender:
        """Return a copy for another thread and event loop; close it as well."""

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend the leases that acks of kind ``progress`` name; one entry each: None, or why the lease is lost."""

    async def close(self) -> None:
        """Close the connection."""
