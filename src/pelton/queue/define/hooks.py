"""What a program puts around its jobs: around workers, around each run, and before each is enqueued."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import copy_context
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from pelton.api import ConfigError
from pelton.runtime import until_ended

if TYPE_CHECKING:
    from pelton.jet import Streams

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

    __slots__ = ("_around_run", "_entered", "_lifespan", "_on_enqueue", "has_enqueue", "has_run")

    def __init__(self) -> None:
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

        def entered() -> ExitStack:
            with ExitStack() as stack:
                for hook in hooks:
                    stack.enter_context(hook(context))
                return stack.pop_all()

        async def run_async(**arguments: Any) -> Any:
            with entered():
                return await function(**arguments)

        def run(**arguments: Any) -> Any:
            with entered():
                return function(**arguments)

        return run_async if is_async else run
