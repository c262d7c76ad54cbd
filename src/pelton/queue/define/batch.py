"""Jobs in batches: one call of a function for many jobs, each of which ends by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints, overload

from pelton.api import ConfigError
from pelton.queue.define.arguments import JobArguments
from pelton.queue.define.job import Job

if TYPE_CHECKING:
    from pelton.queue.define.hooks import JobHooks
    from pelton.queue.define.job import JobQueue
    from pelton.queue.define.job_codec import JobCodec
    from pelton.queue.model.rules import JobRules

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
        found: Coroutine[Any, Any, Sequence[R | BaseException] | None] = self.function(items)
        return found


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
        ...


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
    (found, *_) = (*get_args(kind), Any)
    kinds = get_args(found) or (found,)
    return Any if any(isinstance(one, type) and issubclass(one, BaseException) for one in kinds) else found
