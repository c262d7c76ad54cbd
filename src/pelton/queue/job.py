"""A job: a function, its name, its typed arguments and its rules.

A decorated function stays callable. Arguments are bound and checked against the annotations when a job is
enqueued, and travel as a JSON object by parameter name, so that a refactored function still reads old jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from pelton.api import Backoff, ConfigError, JobArgumentsError
from pelton.queue.checks import seconds, whole
from pelton.queue.codec import ResultCodec, bent
from pelton.queue.context import JobContext

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.handle import JobHandle
    from pelton.queue.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_MAX_ATTEMPTS: Final = 5
DEFAULT_BACKOFF: Final = Backoff(base=1.0, factor=2.0, cap=600.0, jitter=0.2)
_OPTIONS: Final = frozenset({"key", "idempotency_key"})
_encode: Final = msgspec.json.Encoder().encode


class JobRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is retried.

    Attempts in all, the wait between them, errors that are not retried, seconds per attempt.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: Backoff = DEFAULT_BACKOFF
    permanent: tuple[type[BaseException], ...] = ()
    timeout: float | None = None

    def check(self, what: str) -> None:
        """Raise ConfigError for rules that cannot be kept; ``what`` names what the rules are for."""
        whole(f"{what}: max_attempts", self.max_attempts)
        if self.timeout is not None and seconds(f"{what}: timeout", self.timeout) <= 0:
            raise ConfigError(f"{what}: timeout is {self.timeout:g} s; it must be more than 0, or None")
        if not isinstance(self.backoff, Backoff):
            raise ConfigError(f"{what}: backoff is {self.backoff!r}; give a pelton.Backoff(base=seconds)")
        for kind in self.permanent:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"{what}: permanent holds {kind!r}; it takes exception classes")


def job_rules(
    what: str,
    max_attempts: int,
    backoff: Backoff,
    permanent: type[BaseException] | Sequence[type[BaseException]],
    timeout: Seconds | None,
) -> JobRules:
    """Return checked rules from what a user passes. Raises ConfigError, which names ``what`` they are for."""
    if isinstance(permanent, type):
        permanent = (permanent,)
    elif not isinstance(permanent, Sequence | AbstractSet):
        raise ConfigError(f"{what}: permanent is {permanent!r}; it takes exception classes")
    limit = None if timeout is None else seconds(f"{what}: timeout", timeout)
    rules = JobRules(max_attempts=max_attempts, backoff=backoff, permanent=tuple(permanent), timeout=limit)
    rules.check(what)
    return rules


class JobCall(msgspec.Struct, frozen=True):
    """A job with its arguments, ready to be enqueued."""

    job: Job[Any, Any]
    args: bytes
    key: str = ""
    idempotency_key: str = ""


class Job(Generic[P, R]):
    """A function registered with a queue. Call it as before, or ``await job.enqueue(...)``."""

    def __init__(
        self, queue: Queue, function: Callable[P, Awaitable[R]] | Callable[P, R], name: str, rules: JobRules
    ) -> None:
        self.queue = queue
        self.function = function
        self.name = name
        self.rules = rules
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        signature = inspect.signature(function)
        self.context_parameter = _context_parameter(function, name)
        self._parameters = [p for p in signature.parameters.values() if p.name != self.context_parameter]
        self._names = tuple(parameter.name for parameter in self._parameters)
        self._struct = _arguments_struct(name, function, self._parameters)
        self._decode = msgspec.json.Decoder(self._struct).decode
        self.results = ResultCodec(name, _hints(function, name).get("return", Any))
        self._signature = signature.replace(parameters=self._parameters)
        self._positional = all(p.kind is not p.KEYWORD_ONLY for p in self._parameters)
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
        if not kwargs and self._positional and len(args) == len(self._names):
            named: dict[str, Any] = dict(zip(self._names, args, strict=True))
        else:
            try:
                named = self._signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise JobArgumentsError(self.name, str(error)) from None
        try:
            encoded = _encode(named)
            decoded = self._decode(encoded)
            for name, value in named.items():
                if getattr(decoded, name) != value and (why := bent(named, self._struct)):
                    raise JobArgumentsError(self.name, why)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobArgumentsError(self.name, str(error)) from None
        return encoded

    def decode_arguments(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Return the arguments of a stored job by name. Raises JobArgumentsError."""
        try:
            decoded = self._decode(raw)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise JobArgumentsError(self.name, str(error)) from None
        return {name: getattr(decoded, name) for name in self._names}


def _context_parameter(function: Callable[..., Any], name: str) -> str:
    hints = _hints(function, name)
    found = [parameter for parameter, hint in hints.items() if hint is JobContext]
    if len(found) > 1:
        raise ConfigError(f"job {name!r}: only one parameter can be the JobContext")
    return found[0] if found else ""


def job_name(function: Callable[..., Any]) -> str:
    """Return the name a function gives its job. Raises ConfigError if it has none."""
    name = getattr(function, "__name__", "")
    if not name:
        raise ConfigError(f"{function!r} has no name of its own: give the job one with queue.job(name=...)")
    return str(name)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"job {name!r}: its annotations can't be read ({error})") from None


def _arguments_struct(
    name: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> type[msgspec.Struct]:
    hints = _hints(function, name)
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"job {name!r}: {parameter.name!r} can only be given by position; arguments travel by name"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"job {name!r}: '*{parameter.name}' has no fixed name; give each argument a parameter")
        if parameter.name in _OPTIONS:
            raise ConfigError(f"job {name!r}: {parameter.name!r} is an option of enqueue; rename the parameter")
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # A factory, because msgspec refuses mutable defaults; the value itself is only ever encoded or read.
            fields.append((parameter.name, hint, msgspec.field(default_factory=partial(_same, parameter.default))))
    try:
        struct = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)
    except TypeError as error:
        raise ConfigError(f"job {name!r}: a parameter's type can't be stored as JSON ({error})") from None
    return struct


def _same(value: R) -> R:
    return value
