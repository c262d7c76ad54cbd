"""Async iterations that stay on the event loop of their source.

An error raised inside an async generator ends it. But use on a foreign event loop must not end it:
its prefetched items belong to the loop that continues with it. So the loop is checked before each step, outside
of the generator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Iteration(AsyncGenerator[T, None]):
    """An async generator whose steps ``check`` may refuse, without affecting the generator."""

    __slots__ = ("_check", "_source")

    def __init__(self, source: AsyncGenerator[T, None], check: Callable[[], None]) -> None:
        self._source = source
        self._check = check

    def __anext__(self) -> Coroutine[Any, Any, T]:
        self._check()
        return self._source.__anext__()

    def asend(self, value: None, /) -> Coroutine[Any, Any, T]:
        """Continue."""
        self._check()
        return self._source.asend(value)

    def athrow(self, *raised: Any) -> Coroutine[Any, Any, T]:
        """Continue with an error."""
        self._check()
        return self._source.athrow(*raised)

    def aclose(self) -> Coroutine[Any, Any, None]:
        """End it."""
        self._check()
        return self._source.aclose()


def at_home(method: F) -> F:
    """Make the async generators of a method check the event loop at each step, with its object's ``_check_loop``."""

    @wraps(method)
    def iterated(self: Any, *args: Any, **kwargs: Any) -> Iteration[Any]:
        return Iteration(method(self, *args, **kwargs), self._check_loop)

    return cast(F, iterated)
