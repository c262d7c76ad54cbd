"""A job: a function, its name, its typed arguments and its rules.

A decorated function stays callable. Arguments are bound and checked against the annotations when a job is
enqueued, and travel as a JSON object by parameter name, so that a refactored function still reads old jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from pelton.api import ConfigError, JobArgumentsError
from pelton.queue.define.arguments import JobArguments
from pelton.queue.define.codec import ResultCodec

if TYPE_CHECKING:
    from pelton.api import Outgoing, PubAck
    from pelton.jet import Streams
    from pelton.queue.define.handle import JobHandle
    from pelton.queue.model.rules import JobRules

P = ParamSpec("P")
R = TypeVar("R")


class JobQueue(Protocol):
    """What a job asks of its queue."""

    jet: Streams
    name: str

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle]:
        """Put many jobs into the queue, durable together and in order."""
        ...

    def message_of(self, call: JobCall) -> Outgoing:
        """Return the message that puts a job into the queue. Raises ConfigError."""
        ...

    def handle(self, ack: PubAck) -> JobHandle:
        """Return the handle of a job that was stored."""
        ...


class JobCall(msgspec.Struct, frozen=True):
    """A job with its arguments, ready to be enqueued."""

    job: Job[Any, Any]
    args: bytes
    key: str = ""
    idempotency_key: str = ""


class Job(Generic[P, R]):
    """A function registered with a queue. Call it as before, or ``await job.enqueue(...)``."""

    def __init__(
        self, queue: JobQueue, function: Callable[P, Awaitable[R]] | Callable[P, R], name: str, rules: JobRules
    ) -> None:
        self.queue = queue
        self.function = function
        self.name = name
        self.rules = rules
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._arguments = JobArguments(name, function)
        self.context_parameter: str = self._arguments.context
        self.results: ResultCodec = self._arguments.results
        if rules.timeout is not None and not self.is_async:
            raise ConfigError(f"job {name!r}: timeout needs an async function; a thread can't be stopped")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R] | R:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Job {self.name!r} of queue {self.queue.name!r}>"

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall:
        """Return a checked call, for :meth:`Queue.enqueue_many`. Raises JobArgumentsError."""
        return JobCall(self, self.encode_arguments(args, kwargs))

    async def enqueue(self, *args: Any, key: str = "", idempotency_key: str = "", **kwargs: Any) -> JobHandle:
        """Put a job into the queue; returns when it is durable.

        ``key`` names what the job works on (in an exclusive queue one job per key runs at a time, in order);
        ``idempotency_key`` makes it safe to repeat the call. Raises JobArgumentsError, ConfigError.
        """
        call = JobCall(self, self.encode_arguments(args, kwargs), key, idempotency_key)
        return (await self.queue.enqueue_many((call,)))[0]

    async def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle]:
        """Put many jobs into the queue, durable together; ``keys`` has one key for each of ``arguments``.

        Raises JobArgumentsError, ConfigError.
        """
        encoded = [self.encode_arguments(self._several(args), {}) for args in arguments]
        if isinstance(keys, str):
            raise ConfigError(f"job {self.name!r}: keys is {keys!r}; give a key for each job, as a list")
        all_keys = [""] * len(encoded) if keys is None else list(keys)
        if len(all_keys) != len(encoded):
            raise ConfigError(f"job {self.name!r}: {len(encoded)} argument lists, but {len(all_keys)} keys")
        calls = [JobCall(self, args, key) for args, key in zip(encoded, all_keys, strict=True)]
        return await self.queue.enqueue_many(calls)

    def _several(self, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of one of many jobs; refuses text, whose letters would be taken for arguments."""
        if type(args) in (list, tuple) or (isinstance(args, Sequence) and not isinstance(args, str | bytes)):
            return args
        raise JobArgumentsError(self.name, f"{args!r:.80} is not a list of arguments, write [({args!r:.80},), ...]")

    def encode_arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return arguments as JSON, checked against the function's annotations. Raises JobArgumentsError."""
        return self._arguments.encode(args, kwargs)

    def decode_arguments(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Return the arguments of a stored job by name. Raises JobArgumentsError."""
        return self._arguments.decode(raw)


def job_name(function: Callable[..., Any]) -> str:
    """Return the name a function gives its job. Raises ConfigError if it has none."""
    name = getattr(function, "__name__", "")
    if not name:
        raise ConfigError(f"{function!r} has no name of its own: give the job one with queue.job(name=...)")
    return str(name)
