"""A job: a function, its name, its arguments and its rules; the hooks around it; and the handle of one in a queue.

A decorated function stays what it is: a call runs it here and now, with its own type. Arguments are bound and checked
against the annotations when a job is enqueued, and travel as a JSON object by parameter name, so that a refactored
function still reads old jobs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from contextvars import copy_context
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec

from pelton.api import ConfigError, JobArgumentsError
from pelton.api.json_values import to_json
from pelton.queue.job_message import JobArguments, JobCodec, ResultCodec, RunContext
from pelton.queue.model.options import PLAIN, JobOptions, OptionFields, job_options, seconds
from pelton.runtime import until_ended

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.jet import Streams
    from pelton.queue.model.options import JobRules
    from pelton.queue.model.states import JobInfo, Outcome

Call = TypeVar("Call")
Around = Callable[[Any], AbstractContextManager[Any]]
# Takes a `JobCall`, and returns one or None.
OnEnqueue = Callable[[Any], Any]


def blocking(jet: Streams, loop: asyncio.AbstractEventLoop) -> Any:
    """Return the blocking face of a worker's store, for code on its threads."""
    # Imported by its name, when it is needed: it is derived from the classes of this room.
    return import_module("pelton.sync").on_loop(jet, loop)


@asynccontextmanager
async def _on_threads(make: Callable[[Any], AbstractContextManager[Any]], jet: Streams) -> AsyncGenerator[Any]:
    """Be within a plain context manager, which is entered and left on threads."""
    loop = asyncio.get_running_loop()
    manager = make(blocking(jet, loop))
    entering = loop.run_in_executor(None, copy_context().run, manager.__enter__)
    try:
        yield await asyncio.shield(entering)
    finally:
        # If it was cancelled meanwhile, its thread goes on.
        await until_ended(entering)
        if entering.exception() is None:
            await asyncio.to_thread(manager.__exit__, None, None, None)


class _Entered:
    """What was entered for the workers of one open store, and how many of these there are."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self.manager = manager
        self.entering = asyncio.Lock()
        self.users = 0
        self.has_begun = False
        self.state: Any = None

    async def enter(self) -> None:
        async with self.entering:
            if not self.has_begun:
                self.state = await self.manager.__aenter__()
                self.has_begun = True


class JobHooks:
    """The hooks of all jobs of one queue or `Jobs`, which share this object: hooks may be added after jobs."""

    __slots__ = ("_around_run", "_entered", "_lifespan", "_on_enqueue", "has_enqueue", "has_run", "version")

    def __init__(self, version: str = "") -> None:
        self.version: str = version
        self._around_run: tuple[Around, ...] = ()
        # Whether something is around the runs.
        self.has_run: bool = False
        # Whether something is to see what is enqueued.
        self.has_enqueue: bool = False
        self._on_enqueue: tuple[OnEnqueue, ...] = ()
        self._lifespan: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None
        # By the store.
        self._entered: dict[object, _Entered] = {}

    def set_lifespan(self, function: Callable[[Any], Any]) -> None:
        """Put an async context manager around the workers. Raises ConfigError."""
        if self._lifespan is not None:
            raise ConfigError(f"lifespan({function!r}): these jobs have one already; enter both in one function")
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"lifespan({function!r}): write a function that yields once")
        if inspect.isgeneratorfunction(function):
            self._lifespan = partial(_on_threads, contextmanager(function))
        else:
            self._lifespan = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function

    def state(self, jet: object) -> Any:
        """Return what the lifespan has yielded for the workers of a store; None without one."""
        entered = self._entered.get(jet)
        return None if entered is None else entered.state

    @asynccontextmanager
    async def living(self, jet: object) -> AsyncGenerator[None]:
        """Be within the lifespan for a store: the first to come enters it, the last to go leaves it."""
        if self._lifespan is None:
            yield
            return
        entered = self._entered.get(jet)
        if entered is None:
            entered = self._entered[jet] = _Entered(self._lifespan(jet))
        entered.users += 1
        try:
            await entered.enter()
            yield
        finally:
            entered.users -= 1
            if not entered.users:
                del self._entered[jet]
                if entered.has_begun:
                    await entered.manager.__aexit__(None, None, None)

    def add_run(self, function: Callable[..., Any]) -> None:
        """Put a context manager around each run, inside those that are there. Raises ConfigError."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"around_run({function!r}): jobs on threads can't await it; write a function that yields")
        around: Any = contextmanager(function) if inspect.isgeneratorfunction(function) else function
        self._around_run, self.has_run = (*self._around_run, around), True

    def add_enqueue(self, function: OnEnqueue) -> None:
        """Pass each call that is to be enqueued through a function, after those that are there. Raises ConfigError."""
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"on_enqueue({function!r}): it can't be async; it takes a call and returns one, or None")
        self._on_enqueue, self.has_enqueue = (*self._on_enqueue, function), True

    def before_enqueue(self, call: Call) -> Call:
        """Return a call as it is to be enqueued. Raises what a hook raises."""
        for hook in self._on_enqueue:
            call = hook(call) or call
        return call

    def around(self, function: Callable[..., Any], context: object, *, is_async: bool) -> Callable[..., Any]:
        """Return a job's function within everything that is around the runs."""
        hooks = self._around_run

        def enter_all() -> ExitStack:
            with ExitStack() as stack:
                for hook in hooks:
                    stack.enter_context(hook(context))
                return stack.pop_all()

        async def run_async(**arguments: Any) -> Any:
            with enter_all():
                return await function(**arguments)

        def run(**arguments: Any) -> Any:
            with enter_all():
                return function(**arguments)

        return run_async if is_async else run


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
C = TypeVar("C", bound=RunContext)


class JobQueue(Protocol):
    """What a job asks of its queue."""

    jet: Streams
    name: str

    @property
    def _enqueuer(self) -> CallEnqueuer: ...


class CallEnqueuer(Protocol):
    """What puts calls of jobs into a queue."""

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]:
        """Put many jobs into the queue, durable together and in order."""


class JobCall(msgspec.Struct, frozen=True, gc=False):
    """A job with its arguments and options, ready to be enqueued.

    ``queue`` is the one that the job was registered with, or None for a job of a `Jobs`, which any queue takes.
    ``meta`` travels with the job, to be read as ``JobContext.meta``: a trace, a tenant.
    """

    job: str
    args: bytes
    """The arguments, as JSON by name."""
    options: JobOptions = PLAIN
    results: ResultCodec | None = None
    """How the result is decoded."""
    queue: JobQueue | None = None
    meta: dict[str, str] = {}

    def with_options(self, **options: Unpack[OptionFields]) -> JobCall:
        """Return the call with some options of `JobOptions` set anew. Raises ConfigError."""
        fields: Any = msgspec.structs.asdict(self.options) | dict(options)
        return msgspec.structs.replace(self, options=job_options(f"job {self.job!r}", fields))

    def with_meta(self, **meta: str) -> JobCall:
        """Return the call with more ``meta``, all texts. Raises ConfigError."""
        for name, value in meta.items():
            if not isinstance(value, str):
                raise ConfigError(f"job {self.job!r}: meta {name!r} is {value!r}; give a text (str)")
        return msgspec.structs.replace(self, meta=self.meta | meta)

    def with_trace(self, context: Mapping[str, str]) -> JobCall:
        """Return the call with the context of a trace, unless the program has given it one."""
        if self.meta.keys() & context.keys():
            return self
        return msgspec.structs.replace(self, meta={**context, **self.meta})


class JobHandle(Generic[R_co]):
    """A job that was enqueued; ``R_co`` is what its function returns.

    ``duplicate``: the idempotency key was known, and this is the job that the first call created.
    """

    __slots__ = ("_lookup", "_queue", "_read", "duplicate", "id")

    def __init__(
        self,
        lookup: JobLookup,
        queue: str,
        job_id: str,
        duplicate: bool = False,
        read: Callable[[msgspec.Raw], object] | None = None,
    ) -> None:
        self._lookup = lookup
        self._queue = queue
        # Decodes a result to the declared type; None: as plain JSON.
        self._read = read
        self.id: str = job_id
        self.duplicate: bool = duplicate

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of queue {self._queue!r}>"

    async def info(self) -> JobInfo:
        """Return the job's present state. Raises JobNotFoundError when its history was cleaned."""
        return await self._lookup.get(self.id)

    async def cancel(self, *, reason: str = "") -> bool:
        """Cancel the job, waiting or running, from any process, for a ``reason``; see :meth:`Queue.cancel`.

        Raises JobNotFoundError.
        """
        return await self._lookup.cancel(self.id, reason=reason)

    async def send(self, name: str, value: object = None, *, msg_id: str = "") -> bool:
        """Send a signal to the job, from any process, once for each ``msg_id``; see :meth:`Queue.send`.

        Raises JobEndedError, JobNotFoundError, ConfigError.
        """
        return await self._lookup.send(self.id, name, value, msg_id=msg_id)

    async def event(self, name: str, kind: Any = Any, *, timeout: Seconds | None = None) -> Any:
        """Return what the job has published last by `JobContext.publish` under a ``name``, once it has, as a ``kind``.

        Of a job that has ended as well, as long as its history is kept. Raises JobEndedError if it ends without, or if
        it failed before it could publish, TimeoutError after ``timeout`` seconds, JobNotFoundError, JobResultError,
        ConfigError.
        """
        return await self._lookup.event(self.id, name, kind, timeout=timeout)

    async def events(self) -> AsyncGenerator[tuple[str, Any]]:
        """Iterate over what the job publishes until it ends: ``async for name, value in job.events()``, in order.

        What it published before comes first. Of what was published just before its end, some may be left out, but not
        the last value of a name; of a job that has ended, these are what is kept. Raises JobNotFoundError.
        """
        async with aclosing(self._lookup.events(self.id)) as events:
            async for name, value in events:
                yield name, value

    async def outcome(self, *, timeout: Seconds | None = None) -> Outcome:
        """Wait until the job has ended, and return its outcome; ``timeout`` in seconds.

        Raises TimeoutError, ConfigError.
        """
        limit = None if timeout is None else seconds(f"job {self.id} of queue {self._queue!r}: timeout", timeout)
        outcome = await self._lookup.outcome(self.id, limit)
        if outcome is None:
            raise TimeoutError(
                f"job {self.id} of queue {self._queue!r} has not ended within {limit:g} s; it was not cancelled"
            )
        return outcome

    async def value(self, *, timeout: Seconds | None = None) -> R_co:
        """Wait until the job has ended, and return what its function returned; ``timeout`` in seconds.

        The result is decoded to the type that the function declares. Raises JobFailedError if the job has not
        completed, JobResultError if its result is of another type, TimeoutError, ConfigError.
        """
        outcome = await self.outcome(timeout=timeout)
        if outcome.state != "completed" or self._read is None:
            return cast(R_co, outcome.value())
        return cast(R_co, self._read(outcome.result))


class JobDefinition(Generic[P, R]):
    """A function with what it takes to enqueue and run it; ``R`` is what it returns, awaited if async."""

    def __init__(
        self,
        queue: JobQueue | None,
        function: Callable[..., Any],
        name: str,
        rules: JobRules,
        arguments: JobArguments,
        hooks: JobHooks | None = None,
        in_process: bool = False,
    ) -> None:
        self.queue = queue
        self.in_process = in_process
        self.hooks: JobHooks = hooks or JobHooks()
        self.function = function
        self.name = name
        self.rules = rules
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.arguments = arguments
        self.context_parameter: str = arguments.context
        self.results: ResultCodec = arguments.results
        if in_process:
            _check_in_process(function, name)
        if rules.timeout is not None and not self.is_async and not in_process:
            raise ConfigError(
                f"job {name!r}: timeout needs an async function, or process=True; a thread can't be stopped"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall:
        """Return a checked call, for :meth:`Queue.enqueue_many`. Raises JobArgumentsError."""
        return self.call_with(args, kwargs, PLAIN)

    def call_with(self, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions) -> JobCall:
        """Return a checked call with options. Raises JobArgumentsError, and what a hook raises."""
        call = self.call_of(self.arguments.encode(args, kwargs), options)
        return self.hooks.before_enqueue(call) if self.hooks.has_enqueue else call

    def call_of(self, args: bytes, options: JobOptions) -> JobCall:
        """Return a call with arguments as JSON, which are not checked here."""
        return JobCall(self.name, args, options, self.results, self.queue)


class Job(JobDefinition[P, R], Generic[P, R]):
    """A function registered as a job. Call it as before, or enqueue it.

    A job of ``queue.job`` has a queue; one of `Jobs` is enqueued with ``queue.enqueue(job, ...)``.
    """

    def __repr__(self) -> str:
        home = f" of queue {self.queue.name!r}" if self.queue is not None else ""
        return f"<Job {self.name!r}{home}>"

    @overload
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, *args: Any, key: str, idempotency_key: str = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, *args: Any, idempotency_key: str, **kwargs: Any) -> JobHandle[R]: ...

    # A job's function cannot have parameters of these names (``arguments.py``), which a type checker does not know.
    async def enqueue(  # type: ignore[misc]
        self, *args: Any, key: str = "", idempotency_key: str = "", **kwargs: Any
    ) -> JobHandle[R]:
        """Put a job into the queue; returns when it is durable.

        ``key`` names what the job works on (in an exclusive queue one job per key runs at a time, in order);
        ``idempotency_key`` makes it safe to repeat the call. Type checkers do not check the arguments beside these
        two: ``job.options(key=...).enqueue(...)`` is checked. Raises JobArgumentsError, ConfigError.
        """
        options = JobOptions(key=key, idempotency_key=idempotency_key) if key != "" or idempotency_key != "" else PLAIN
        call = self.call_with(args, kwargs, options)
        return (await self.own_queue._enqueuer.enqueue_many((call,)))[0]

    async def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle[R]]:
        """Put many jobs into the queue, durable together; ``keys`` has one key for each of ``arguments``.

        Raises JobArgumentsError, ConfigError.
        """
        encoded = [self.arguments.encode(self._several(args), {}) for args in arguments]
        if isinstance(keys, str):
            raise ConfigError(f"job {self.name!r}: keys is {keys!r}; give a key for each job, as a list")
        options = [PLAIN] * len(encoded) if keys is None else [JobOptions(key=key) for key in keys]
        if len(options) != len(encoded):
            raise ConfigError(f"job {self.name!r}: {len(encoded)} argument lists, but {len(options)} keys")
        calls = [self.call_of(args, option) for args, option in zip(encoded, options, strict=True)]
        if self.hooks.has_enqueue:
            calls = list(map(self.hooks.before_enqueue, calls))
        return await self.own_queue._enqueuer.enqueue_many(calls)

    def options(self, **options: Unpack[OptionFields]) -> JobWithOptions[P, R]:
        """Return the job with options, to be enqueued: ``await job.options(key="car1", delay=30).enqueue(...)``.

        The options are those of `JobOptions`. Raises ConfigError.
        """
        return JobWithOptions(self, job_options(f"job {self.name!r}", options))

    @property
    def own_queue(self) -> JobQueue:
        """The queue that the job was registered with. Raises ConfigError for a job of a `Jobs`."""
        if self.queue is None:
            raise ConfigError(
                f"job {self.name!r} was declared in a pelton.Jobs() and has no queue of its own: "
                "enqueue it with queue.enqueue(job, ...), or many with queue.enqueue_many([job.bind(...), ...])"
            )
        return self.queue

    def _several(self, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of one of many jobs; refuses text, whose letters would be taken for arguments."""
        if type(args) in (list, tuple) or (isinstance(args, Sequence) and not isinstance(args, str | bytes)):
            return args
        raise JobArgumentsError(self.name, f"{args!r:.80} is not a list of arguments, write [({args!r:.80},), ...]")


class JobWithOptions(Generic[P, R]):
    """A job and the options to enqueue it with; made by ``job.options(...)``."""

    __slots__ = ("_job", "_options")

    def __init__(self, job: Job[P, R], options: JobOptions) -> None:
        self._job = job
        self._options = options

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall:
        """Return a checked call, for :meth:`Queue.enqueue_many`. Raises JobArgumentsError."""
        return self._job.call_with(args, kwargs, self._options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Put the job into its queue; returns when it is durable. Raises JobArgumentsError, ConfigError."""
        return (await self._job.own_queue._enqueuer.enqueue_many((self.bind(*args, **kwargs),)))[0]


# For type checkers: a call of a decorated function has the type of the function itself.


class AsyncJob(Job[P, R], Generic[P, R]):
    """The job of an async function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, here and now."""
        returned: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return returned


class SyncJob(Job[P, R], Generic[P, R]):
    """The job of a function that is not async: it runs on a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now."""
        returned: R = self.function(*args, **kwargs)
        return returned


class AsyncContextJob(Job[P, R], Generic[P, R]):
    """The job of an async function whose first parameter is the `JobContext`, which no caller passes to ``enqueue``."""

    def __call__(self, context: RunContext, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, here and now."""
        returned: Coroutine[Any, Any, R] = self.function(context, *args, **kwargs)
        return returned


class SyncContextJob(Job[P, R], Generic[P, R]):
    """The job of a function on a thread whose first parameter is the `JobContext`."""

    def __call__(self, context: RunContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now."""
        returned: R = self.function(context, *args, **kwargs)
        return returned


class JobDecorator(Protocol):
    """What ``queue.job(...)`` returns: makes a function a job."""

    # The overloads overlap because an async function is also one that returns a coroutine: the first that fits counts.

    @overload
    def __call__(self, function: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /) -> AsyncContextJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[C, P], R], /) -> SyncContextJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncJob[P, R]: ...


def job_of(
    queue: JobQueue | None,
    function: Callable[..., Any],
    name: str,
    rules: JobRules,
    hooks: JobHooks,
    codec: JobCodec | None = None,
    in_process: bool = False,
) -> Job[Any, Any]:
    """Return a function as a job, which is called as the function is. Raises ConfigError."""
    arguments = JobArguments(name, function, codec)
    first = next(iter(inspect.signature(function).parameters), "")
    has_context = bool(arguments.context) and arguments.context == first
    kind: type[Job[Any, Any]]
    if inspect.iscoroutinefunction(function):
        kind = AsyncContextJob if has_context else AsyncJob
    else:
        kind = SyncContextJob if has_context else SyncJob
    return kind(queue, function, name, rules, arguments, hooks, in_process)


def _check_in_process(function: Callable[..., Any], name: str) -> None:
    """Raise ConfigError for a function that a child process cannot run."""
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"job {name!r}: process=True is for functions that are not async")
    path = getattr(function, "__qualname__", "<")
    if "<" in path:
        raise ConfigError(
            f"job {name!r}: process=True needs a function that a child process can import: define it at the top level "
            "of a module"
        )


def encode_unknown(job: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    """Return the arguments of a job that this program does not know as JSON. Raises JobArgumentsError."""
    if args:
        raise JobArgumentsError(
            job, "this program does not know the job's parameters: give its arguments by name (car='car1')"
        )
    try:
        return to_json(kwargs)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JobArgumentsError(job, str(error)) from None


def job_name(function: Callable[..., Any]) -> str:
    """Return the name a function gives its job. Raises ConfigError if it has none."""
    name = getattr(function, "__name__", "")
    if not name:
        raise ConfigError(f"{function!r} has no name of its own: give the job one with queue.job(name=...)")
    return str(name)


class JobLookup(Protocol):
    """How the handle of a job finds out what became of it."""

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id. Raises JobNotFoundError, ConfigError."""

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job; return False if it had ended otherwise. Raises JobNotFoundError, ConfigError."""

    async def send(self, job_id: str, name: str, value: object = None, *, msg_id: str = "") -> bool:
        """Send a signal to a job. Raises JobEndedError, JobNotFoundError, ConfigError."""

    async def event(self, job_id: str, name: str, kind: Any = Any, *, timeout: Seconds | None = None) -> Any:
        """Return what a job has published last under a name, once it has."""

    def events(self, job_id: str) -> AsyncGenerator[tuple[str, Any]]:
        """Iterate over what a job publishes, with the names, until it ends."""

    async def cancel_called(self, job_id: str) -> None:
        """Cancel the jobs that a job has called and that are not to go on without it."""

    async def outcome(self, job_id: str, limit: float | None) -> Outcome | None:
        """Wait until a job has ended, for ``limit`` seconds at most; None if it has not ended by then."""
