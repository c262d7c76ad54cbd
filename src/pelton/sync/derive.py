"""Blocking classes made from async ones, so that nothing is written twice.

``derive(Stream)`` returns a class whose instances stand for a ``Stream`` that lives on a portal's event loop:

=====================================  ====================================================================
of the async class                     of its twin
=====================================  ====================================================================
coroutine method                       blocks and returns the result
async generator, async iterator        generator, iterator; ending the loop early closes it at once
``async with``, ``async for``          ``with``, ``for``
plain method                           runs on the loop too, where its object lives
property, attribute                    is read on the caller's thread
``__call__``                           is called on the caller's thread: a decorated function stays what it was
=====================================  ====================================================================

Handles pass in both directions, alone or in a list or tuple: results are wrapped as their twins,
arguments are unwrapped. If a function is returned (such as a decorator), its own result is wrapped.

**Signals for a call that blocks the main thread until it is stopped.** The event loop never runs on the main thread
here, but signals are only handled there: so the blocking caller handles them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FunctionType, GenericAlias, MappingProxyType, MethodType
from typing import Any, Final

from pelton.api import StoreClosedError
from pelton.runtime import StopSignals
from pelton.sync.portal import Portal


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first SIGTERM or SIGINT without another handler, if this is the main thread."""
    signals = StopSignals(stop)
    signals.take()
    try:
        yield
    finally:
        signals.give_back()


FACES: Final = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
_twins: dict[type, type[Twin]] = {}


class Twin:
    """A blocking handle on an async object that lives on a portal's loop."""

    __slots__ = ("_inner", "_portal")

    def __init__(self, inner: Any, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return wrap_handle(getattr(self._inner, name), self._portal)

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


def derive(
    source: type,
    *,
    ends_portal: str = "",
    opens: Collection[str] = (),
    stops: Mapping[str, str] = MappingProxyType({}),
    as_given: Collection[str] = (),
) -> type[Twin]:
    """Return the blocking twin of an async class, and register it for all returned objects of that class.

    ``ends_portal`` names the method after which the portal can stop; ``opens`` names methods whose
    result needs its own portal. ``stops`` names methods that run until stopped, each with the plain method that stops
    them: signals call it, as they would for the async class. ``as_given`` names methods that consume iterators
    themselves, on another thread than the loop's.
    """
    members: dict[str, Any] = {"__slots__": (), "__doc__": source.__doc__, "__module__": "pelton.sync"}
    for name in public_names(source):
        members[FACES.get(name, name)] = _member(name, inspect.getattr_static(source, name))
    for name in opens:
        members[name] = _opening(inspect.getattr_static(source, name))
    for name in as_given:
        members[name] = _blocking(inspect.getattr_static(source, name), unwrapped=False)
    for name, stop in stops.items():
        members[name] = _stopped_by_signals(members[name], stop)
    if hasattr(source, "__class_getitem__"):
        members["__class_getitem__"] = classmethod(GenericAlias)
    if ends_portal:
        members[ends_portal] = _ending(members[ends_portal])
        members["__exit__"] = lambda self, *_: getattr(self, ends_portal)()
    twin = type(source.__name__, (Twin,), members)
    _twins[source] = twin
    return twin


def source_of(twin: type[Twin]) -> type:
    """Return the async class that a twin was derived from."""
    return next(source for source, known in _twins.items() if known is twin)


def public_names(source: type) -> list[str]:
    """Return the names of an async class that its twin has: its public names, and the protocols' methods."""
    kept = {*FACES, "__call__"}
    return [
        name
        for name in dir(source)
        if (not name.startswith("_") or name in kept) and not inspect.ismemberdescriptor(getattr(source, name))
    ]


def _member(name: str, member: Any) -> Any:
    if isinstance(member, property):
        return property(lambda self: wrap_handle(getattr(self._inner, name), self._portal), doc=member.__doc__)
    if isinstance(member, classmethod):
        return classmethod(_making(member.__func__, name))
    if not isinstance(member, FunctionType):
        return member
    if name == "__call__":
        return _direct(member)
    return _iteration(member) if inspect.isasyncgenfunction(inspect.unwrap(member)) else _blocking(member)


def _direct(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Twin, /, *args: Any, **kwargs: Any) -> Any:
        return method(self._inner, *args, **kwargs)

    return call


def _blocking(method: Callable[..., Any], *, unwrapped: bool = True) -> Callable[..., Any]:
    @functools.wraps(method)
    def blocking(self: Twin, /, *args: Any, **kwargs: Any) -> Any:
        portal = self._portal
        if unwrapped:
            args, kwargs = unwrap_all(args), unwrap_named(kwargs)
        try:
            result = portal.run(method, self._inner, *args, **kwargs)
        except StopAsyncIteration:
            raise StopIteration from None
        return self if result is self._inner else wrap(result, portal)

    return blocking


def _opening(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def opening(self: Twin, /, *args: Any, **kwargs: Any) -> Any:
        portal = self._portal.another()
        try:
            return wrap(portal.run(method, self._inner, *args, **kwargs), portal)
        except BaseException:
            portal.stop()
            raise

    return opening


def _making(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a class method that makes a handle from another one, on whose portal both live."""

    @functools.wraps(method)
    def making(cls: type[Twin], /, *args: Any, **kwargs: Any) -> Any:
        portal = next(arg._portal for arg in (*args, *kwargs.values()) if isinstance(arg, Twin))
        make = getattr(source_of(cls), name)
        return wrap(portal.run(make, *unwrap_all(args), **unwrap_named(kwargs)), portal)

    return making


def _stopped_by_signals(method: Callable[..., Any], stop: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def run_until_stopped(self: Twin, /, *args: Any, handle_signals: bool = True, **kwargs: Any) -> Any:
        if not handle_signals:
            return method(self, *args, handle_signals=False, **kwargs)
        # Schedule it, don't wait: the handler runs on the thread that is waiting.
        with stopping(lambda: self._portal.start_later(getattr(self._inner, stop))):
            return method(self, *args, **kwargs)

    return run_until_stopped


def _iteration(method: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def iteration(self: Twin, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return iterate(method(self._inner, *unwrap_all(args), **unwrap_named(kwargs)), self._portal)

    return iteration


def _ending(close: Callable[[Twin], None]) -> Callable[[Twin], None]:
    @functools.wraps(close)
    def ending(self: Twin) -> None:
        try:
            # Another thread may be closing it at this moment.
            with suppress(StoreClosedError):
                if self._portal.is_usable:
                    close(self)
        finally:
            self._portal.stop()

    return ending


def wrap(value: Any, portal: Portal) -> Any:
    """Return the blocking twin of an async method's result; plain values are returned unchanged."""
    if isinstance(value, AsyncIterator) and twin_of(type(value)) is None:
        return iterate(value, portal)
    if isinstance(value, FunctionType | MethodType):
        return _wrapping(value, portal)
    return wrap_handle(value, portal)


def wrap_handle(value: Any, portal: Portal) -> Any:
    """Return the twin of a handle, or a list, tuple or dict of twins; anything else unchanged."""
    twin = twin_of(type(value))
    if twin is not None:
        return twin(value, portal)
    # Handles are never mixed with other values: checking the first is enough.
    if type(value) in (list, tuple) and value and twin_of(type(value[0])) is not None:
        return type(value)(wrap_handle(item, portal) for item in value)
    if type(value) is dict:
        return {key: wrap_handle(item, portal) for key, item in value.items()}
    return value


def _wrapping(function: Callable[..., Any], portal: Portal) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapping(*args: Any, **kwargs: Any) -> Any:
        return wrap(portal.run(function, *unwrap_all(args), **unwrap_named(kwargs)), portal)

    return wrapping


def twin_of(source: type) -> type[Twin] | None:
    """Return the twin of an async class, or of the nearest of its bases that has one."""
    found = _twins.get(source)
    if found is not None or not source.__module__.startswith("pelton."):
        return found
    return next((_twins[base] for base in source.__mro__ if base in _twins), None)


def unwrap(value: Any) -> Any:
    """Return a blocking caller's argument as the async method takes it."""
    if isinstance(value, Twin):
        return value._inner
    if type(value) in (list, tuple):
        return type(value)(item._inner if isinstance(item, Twin) else item for item in value)
    if isinstance(value, Iterator):
        # Consume it here: on the loop's thread its blocking calls would wait for themselves.
        return [unwrap(item) for item in value]
    return value


def unwrap_all(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Unwrap positional arguments."""
    return tuple(unwrap(value) for value in values)


def unwrap_named(values: dict[str, Any]) -> dict[str, Any]:
    """Unwrap keyword arguments."""
    return {name: unwrap(value) for name, value in values.items()}


def iterate(source: AsyncIterator[Any], portal: Portal) -> Generator[Any, None, None]:
    """Iterate over an async iterator of a portal's loop; an abandoned iteration is closed at once."""
    try:
        while True:
            try:
                item = portal.run(source.__anext__)
            except StopAsyncIteration:
                return
            yield wrap(item, portal)
    finally:
        _close(source, portal)


def _close(source: AsyncIterator[Any], portal: Portal) -> None:
    if not isinstance(source, AsyncGenerator):
        return
    if portal.is_usable:
        portal.run(source.aclose)
    else:
        # The garbage collector may run this on the loop's own thread.
        portal.start_later(source.aclose)
