"""An event loop on a thread of its own, and how other threads get work done there.

Design: A blocking call becomes a :class:`_Call`: its function runs on the loop, and if that gives an awaitable
it becomes a task; the calling thread sleeps on a future until the outcome is there. A thread that is
interrupted while it sleeps (Ctrl-C) cancels its task, waits for the task to end, and only then raises: what
was interrupted is over when the caller sees the interrupt. A second interrupt does not wait.

Invariants:
- A call is answered exactly once, also when the portal stops in the middle: a call is registered before
  ``_stopping`` is read, and what is still registered when the loop has ended is answered with an error.
- Nobody waits for the loop on the loop's own thread.
- After ``fork`` the child has no such thread: every call there is refused, and stopping does nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from inspect import isawaitable
from typing import Any

from pelton.api import StoreClosedError, StoreForkedError
from pelton.runtime import calls_for, this_thread


class _Call:
    """One operation on its way: where it runs, and where its outcome goes."""

    __slots__ = ("_context", "_function", "_task", "_waiter", "outcome")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._waiter = this_thread()
        self._task: asyncio.Future[Any] | None = None
        self.outcome: Future[Any] = Future()

    def start(self) -> None:
        """Begin, on the loop."""
        if self.outcome.done():
            return
        try:
            result = self._context.run(self._function)
            if not isawaitable(result):
                self._answer(result, None)
                return
            # Not Runtime.spawn: the thread that waits keeps the task, and it is told the error.
            self._task = asyncio.get_running_loop().create_task(_finished(result, self._waiter), context=self._context)
            self._task.add_done_callback(self._ended)
        except Exception as error:  # whatever it is, it belongs to the caller
            self._answer(None, error)

    def cancel(self) -> None:
        """Stop, on the loop."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._answer(None, asyncio.CancelledError())

    def _ended(self, task: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._answer(None if error else task.result(), error)

    def _answer(self, result: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(result)


async def _finished(awaitable: Any, waiter: Any) -> Any:
    # A transaction goes from call to call with the thread that opened it.
    calls_for(waiter)
    return await awaitable


class Portal:
    """A running event loop that other threads may use; ``name`` is what errors call it (the store's address)."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._calls: set[_Call] = set()
        self._stopping = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"pelton-sync {name}", daemon=True)
        self._thread.start()
        self._started.wait()
        # A daemon, so that a program that forgot to close can end; but an orderly end where there is one.
        atexit.register(self.stop)

    def another(self) -> Portal:
        """Return another event loop on another thread, of the same name."""
        return Portal(self._name)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` on the loop, await what it returns if that can be awaited, and return the result.

        Raises what the function raises; StoreClosedError when the portal is stopped, or stops meanwhile;
        StoreForkedError in a child process; RuntimeError on the loop's own thread, where waiting would never
        end.
        """
        self._check()
        call = _Call(lambda: function(*args, **kwargs))
        self._calls.add(call)
        try:
            if self._stopping:
                raise StoreClosedError(self._name)
            self._loop.call_soon_threadsafe(call.start)
            return call.outcome.result()
        except asyncio.CancelledError:
            raise StoreClosedError(self._name, "it was closed while this call was under way") from None
        except BaseException:
            self._interrupt(call)
            raise
        finally:
            self._calls.discard(call)

    def start_later(self, function: Callable[[], Any]) -> None:
        """Do the same without waiting; for finalizers, which may run on any thread at any time."""
        if os.getpid() == self._pid and not self._stopping:
            self._loop.call_soon_threadsafe(_Call(function).start)

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the loop's own."""
        return threading.get_ident() == self._thread.ident

    @property
    def is_usable(self) -> bool:
        """Whether a call from this process and thread would be taken."""
        return os.getpid() == self._pid and not self._stopping and not self.is_here

    def stop(self) -> None:
        """End the loop and its thread; calls under way fail with StoreClosedError. Idempotent."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.stop)
        if not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._end.set)
        if not self.is_here:
            self._thread.join()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise StoreForkedError(self._name)
        if self.is_here:
            raise RuntimeError(
                "the blocking face was called on its own event loop, which would wait for itself for ever: "
                "use the async handles there, or make the function a plain one, which runs on a thread"
            )

    def _interrupt(self, call: _Call) -> None:
        if call.outcome.done() or self._stopping:
            return
        self._loop.call_soon_threadsafe(call.cancel)
        wait([call.outcome])

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._until_stopped())
        for call in list(self._calls):
            call.cancel()

    async def _until_stopped(self) -> None:
        self._end = asyncio.Event()
        self._started.set()
        await self._end.wait()
