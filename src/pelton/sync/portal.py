"""An event loop on its own thread, to which other threads submit work, and an open store on one.

A blocking call becomes a :class:`_Call`: its function runs on the loop, and if that returns an awaitable it becomes a
task; the calling thread sleeps on a future until the outcome is there. A thread that is interrupted while it sleeps
(Ctrl-C) cancels its task, waits for the task to end, and only then raises: the interrupted operation is over when the
caller sees the interrupt. A second interrupt does not wait.

Invariants:
- A call is answered exactly once, even if the portal stops in the middle: a call is registered before
  ``_stopping`` is read, and calls still registered when the loop ends are answered with an error.
- No call waits for the loop on the loop's own thread.
- After ``fork`` the child has no such thread: every call there is refused, and stopping does nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Self, TypeVar

from pelton.api import StoreClosedError, StoreForkedError
from pelton.connect import Jet, Opening
from pelton.runtime import LoopThread, calls_for, this_thread


class _Call:
    """One operation in progress: where it runs, and where its outcome goes."""

    __slots__ = ("_context", "_function", "_task", "_waiter", "outcome")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._waiter = this_thread()
        self._task: asyncio.Future[Any] | None = None
        self.outcome: Future[Any] = Future()

    def start(self) -> None:
        if self.outcome.done():
            return
        try:
            result = self._context.run(self._function)
            if not isawaitable(result):
                self._answer(result, None)
                return
            # Not Runtime.spawn: the waiting thread keeps the task, and gets its error.
            self._task = asyncio.get_running_loop().create_task(_finish(result, self._waiter), context=self._context)
            self._task.add_done_callback(self._on_end)
        except Exception as error:  # whatever it is, it belongs to the caller
            self._answer(None, error)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._answer(None, asyncio.CancelledError())

    def drop(self) -> None:
        """Discard, on the loop; no effect once started."""
        if self._task is None:
            self._answer(None, asyncio.CancelledError())

    def _on_end(self, task: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._answer(None if error else task.result(), error)

    def _answer(self, result: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(result)


async def _finish(awaitable: Any, waiter: Any) -> Any:
    # A transaction belongs to the thread that opened it, across its calls.
    calls_for(waiter)
    return await awaitable


class _BorrowedLoop(LoopThread):
    """An event loop that somebody else runs, and ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pid = os.getpid()
        self._loop = loop

    @property
    def is_here(self) -> bool:
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self._loop
        return False

    def join(self) -> None:
        """Do not wait: the borrowed loop goes on."""


class Portal:
    """A running event loop that other threads may use; ``name`` names it in errors (the store's address).

    With ``loop`` it is that one, which does not end with the portal.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._name = name
        self._calls: set[_Call] = set()
        self._stopping = False
        self._end = asyncio.Event()
        if loop is not None:
            self._thread: LoopThread = _BorrowedLoop(loop)
            return
        self._thread = LoopThread(self._until_stopped, f"pelton-sync {name}")
        self._thread.start()
        # A daemon, so that a program that forgot to close can exit; but with an orderly end if possible.
        atexit.register(self.stop)

    def another(self) -> Portal:
        """Return another event loop on another thread, of the same name."""
        return Portal(self._name)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` on the loop, await its result if that is awaitable, and return it.

        Raises what the function raises; StoreClosedError if the portal is stopped, or stops during the call;
        StoreForkedError in a child process; RuntimeError on the loop's own thread, where waiting would never
        end.
        """
        self._check()
        call = _Call(lambda: function(*args, **kwargs))
        self._calls.add(call)
        try:
            if self._stopping or not self._thread.call_soon(call.start):
                raise StoreClosedError(self._name)
            return call.outcome.result()
        except asyncio.CancelledError:
            raise StoreClosedError(self._name, "it was closed during this call") from None
        except BaseException:
            self._interrupt(call)
            raise
        finally:
            self._calls.discard(call)

    def start_later(self, function: Callable[[], Any]) -> None:
        """Do the same without waiting; for finalizers, which may run on any thread at any time."""
        if not self._stopping:
            self._thread.call_soon(_Call(function).start)

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the loop's own."""
        return self._thread.is_here

    @property
    def is_usable(self) -> bool:
        """Whether a call from this process and thread would be taken."""
        return not (self._thread.is_inherited or self._stopping or self.is_here)

    def stop(self) -> None:
        """End the loop and its thread; calls in progress fail with StoreClosedError. Idempotent."""
        if self._thread.is_inherited:
            return
        atexit.unregister(self.stop)
        if not self._stopping:
            self._stopping = True
            self._thread.call_soon(self._end.set)
        self._thread.join()

    def _check(self) -> None:
        if self._thread.is_inherited:
            raise StoreForkedError(self._name)
        if self.is_here:
            raise RuntimeError(
                "the blocking API was called on its own event loop, which would wait for itself for ever: "
                "use the async handles there, or make the function a plain one, which runs on a thread"
            )

    def _interrupt(self, call: _Call) -> None:
        if call.outcome.done() or self._stopping:
            return
        self._thread.call_soon(call.cancel)
        wait([call.outcome])

    async def _until_stopped(self) -> None:
        await self._end.wait()
        # The loop cancels what has started. New calls see that it stops.
        for call in list(self._calls):
            call.drop()


# --- an open store for a program's own blocking calls, on an event loop of its own

T = TypeVar("T")


class BlockingStore:
    """A store file or a cluster at ``address``, which ``opened`` opens; close it, or use it in a ``with``."""

    def __init__(self, address: str, opened: Callable[[], Opening]) -> None:
        self._portal = Portal(address)
        try:
            self.jet: Jet = self.run(opened)
        except BaseException:
            self._portal.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Idempotent."""
        if self._portal.is_usable:
            self.run(self.jet.close)
            self._portal.stop()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function on the event loop, and wait for its result."""
        result: T = self._portal.run(function, *args)
        return result

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what the event loop yields, which is never None; then close the store."""
        try:
            while (item := self.run(_next, items)) is not None:
                yield item
        finally:
            self.close()


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)
