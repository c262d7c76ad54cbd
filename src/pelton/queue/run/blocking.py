"""The durable verbs of jobs that are plain functions: on threads, and in child processes.

**On a thread** a verb is a task on the worker's event loop, and its thread waits for that. What the verb calls, such as
the function of a step, is called on the thread that waits, so it finds what belongs to its thread.

**In a child process** a verb is a request through the child's pipe. The worker's thread for that child asks as a job's
own thread would; the function of a step is called in the child, between request and answer.

A job that is given back, cancelled or interrupted ends by CancelledError, which ``except Exception`` does not catch, at
the verb where it waits, or at its next one. What it does then makes no difference: it is given back all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Executor, Future
from contextvars import copy_context
from functools import partial, wraps
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from pelton.api import ConfigError, JobError
from pelton.api.job_errors import describe, trace
from pelton.queue.job import JobCall
from pelton.queue.job_message import ResultCodec
from pelton.queue.run.calls import CalledJob
from pelton.queue.run.context import JobContext
from pelton.queue.run.steps import CALLS_ON, codec_of
from pelton.runtime import calls_for, this_thread

_LOOK_S: Final = 1.0
_VERBS: Final = ("_step", "sleep", "wait_for", "publish", "changed", "gather", "on_failure", "now", "random", "uuid")


class _CallingThread(Executor):
    """Calls functions on a thread that waits for an answer."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        called: Future[Any] = Future()
        self._todo.put(partial(_call, called, partial(function, *args, **kwargs)))
        return called

    def wait(self, answer: Future[Any], loop: asyncio.AbstractEventLoop) -> Any:
        answer.add_done_callback(lambda _: self._todo.put(None))
        while True:
            try:
                if (call := self._todo.get(timeout=_LOOK_S)) is None:
                    break
                call()
            except Empty:
                if loop.is_closed():
                    answer.cancel()
        try:
            return answer.result()
        except CancelledError:
            # The other one is an Exception.
            raise asyncio.CancelledError from None


def _call(called: Future[Any], function: Callable[[], Any]) -> None:
    if called.set_running_or_notify_cancel():
        try:
            called.set_result(function())
        except BaseException as error:  # it belongs to whoever has it called
            called.set_exception(error)


class VerbRunner:
    """Runs the verbs of one attempt on the worker's event loop, until it is closed there; others wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pid = os.getpid()
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def run(self, verb: Callable[[], Any], *, is_last: bool = False) -> Any:
        """Call a function on the loop, await what it returns, and return that; ``is_last``: also if it is closed.

        Raises what that raises, CancelledError if this is closed.
        """
        if os.getpid() != self._pid:
            raise JobError("a process that a job has forked is none of its worker's: it can't use the job's context")
        caller, answer, context = _CallingThread(), Future[Any](), copy_context()
        context.run(CALLS_ON.set, caller)

        def start() -> None:
            if self._is_closed and not is_last:
                answer.cancel()
                return
            task = self._loop.create_task(_run(verb, waiter), context=context)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(partial(_pass_on, answer))

        waiter = this_thread()
        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:
            # The loop is closed.
            raise asyncio.CancelledError from None
        return caller.wait(answer, self._loop)

    def close(self) -> None:
        """End all verbs, and begin no more; on the loop."""
        self._is_closed = True
        for task in list(self._running):
            task.cancel()


async def _run(verb: Callable[[], Any], waiter: Any) -> tuple[Any, BaseException | None]:
    calls_for(waiter)
    try:
        found = verb()
        return (await found if inspect.isawaitable(found) else found), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # it belongs to whoever has asked, also if it would stop the loop
        return None, error


def _pass_on(answer: Future[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        answer.cancel()
    elif answer.set_running_or_notify_cancel():
        found, error = task.result()
        answer.set_result(found) if error is None else answer.set_exception(error)


class BlockingContext(JobContext):
    """The context of a plain function: its verbs block until they are done, and it takes the value of a `call`."""

    __slots__ = ("verbs",)

    def __init__(self, *args: Any, verbs: VerbRunner, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verbs: VerbRunner = verbs

    def _ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.verbs.run(partial(getattr(JobContext, name), self, *args, **kwargs))

    def call(self, job: Any, /, *args: Any, **kwargs: Any) -> CalledJob[Any]:
        # As a list, because it can be awaited, and must not be yet.
        [called] = self.verbs.run(lambda: [self.call_of(job.bind(*args, **kwargs))])
        called.blocks(self.gather)
        found: CalledJob[Any] = called
        return found


def _blocking(name: str) -> Callable[..., Any]:
    @wraps(getattr(JobContext, name))
    def verb(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._ask(name, args, kwargs)

    return verb


for _name in _VERBS:
    setattr(BlockingContext, _name, _blocking(_name))


# --- in child processes

RETURNED: Final = b"R"
RAISED: Final = b"E"
AGAIN: Final = b"X"
"""The answer to a child: what it has called itself has raised, and is raised again."""
_STOPPED: Final = b"S"
CallBack = Callable[[], tuple[bytes, bytes]]


class ChildTraceback(Exception):  # noqa: N818 - it only shows where an error was raised
    """Where a job raised an error in its child process, as text: the cause of that error."""


class _Unpickler(pickle.Unpickler):
    """Reads what a child has pickled, where the program's own module has another name."""

    def find_class(self, module: str, name: str, /) -> Any:
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


def pickle_error(error: BaseException) -> bytes:
    """Return an error for the other process, or one that tells of it."""
    where = trace(error)
    if isinstance(error, Exception):
        try:
            data = pickle.dumps((error, where))
            pickle.loads(data)
        except BaseException:  # its class may be local, or its constructor unusual
            pass
        else:
            return data
    return pickle.dumps((JobError(describe(error)), where))


def error_of(data: bytes) -> BaseException:
    """Return the error of the other process."""
    try:
        error, where = _Unpickler(BytesIO(data)).load()
    except Exception as wrong:  # a class that only the child can import
        return JobError(f"the error of its child process can't be read: {wrong}")
    assert isinstance(error, BaseException)
    if where and error.__cause__ is None:
        error.__cause__ = ChildTraceback(f"\n{where}")
    return error


def ask_worker(
    ask: Callable[[bytes, Callable[[], bytes] | None], tuple[bytes, bytes]],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Do a verb in a child process, with ``ask`` of its line to the worker. Raises as the verb."""
    call, codec, calls = None, None, args
    if name == "_step":
        what, function, given, named, rules = args
        if rules is not None and rules.timeout is not None:
            raise ConfigError(f"step {what!r} has no timeout in a process: give one to its job")
        codec = codec_of(function, f"step {what!r}")
        call, args = _encoding(codec, partial(function, *given, **named)), (what, rules)
    elif name == "gather":
        args = tuple((one.number, one.is_detached) for one in calls)
    try:
        if name == "on_failure":
            function, *rest = args
            qualname = getattr(function, "__qualname__", type(function).__name__)
            args, kwargs = (qualname, pickle.dumps((function, rest, kwargs))), {}
        question = pickle.dumps((name, args, kwargs))
    except Exception as error:  # whatever it is: objects have code of their own
        raise ConfigError(f"{name}() in a process: what it is given has to be importable: {error!r}") from error
    kind, answer = ask(question, call)
    if kind == _STOPPED:
        raise asyncio.CancelledError
    if kind == RAISED:
        raise error_of(answer)
    found = pickle.loads(answer)
    if codec is not None:
        return codec.decode(found)
    if name == "gather":
        return [_value_of(one, value) for one, value in zip(calls, found, strict=True)]
    return found


def _encoding(codec: ResultCodec, function: Callable[[], Any]) -> Callable[[], bytes]:
    def call() -> bytes:
        found = function()
        return bytes(codec.encode(asyncio.run(found) if inspect.iscoroutine(found) else found))

    return call


def _value_of(called: CalledJob[Any], value: Any) -> Any:
    results = called.call.results
    return value if results is None or isinstance(value, BaseException) else results.decode(value)


class ChildRequests:
    """Answers what one attempt asks from its child process; ``undo`` calls in a child what it has registered."""

    def __init__(self, context: BlockingContext, undo: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self._context = context
        self._undo = undo
        self._calls: dict[int, CalledJob[Any]] = {}
        # Of what was called in the child.
        self._failed: BaseException | None = None

    def answer(self, question: bytes, call_back: CallBack) -> tuple[bytes, bytes]:
        """Return the kind of an answer, and the answer."""
        try:
            name, args, kwargs = _Unpickler(BytesIO(question)).load()
            return RETURNED, pickle.dumps(self._do(name, args, kwargs, call_back))
        except Exception as error:
            return (AGAIN, b"") if error is self._failed else (RAISED, pickle_error(error))
        except BaseException:
            return _STOPPED, b""

    def _do(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], call_back: CallBack) -> Any:
        context: Any = self._context
        if name == "_step":
            what, rules = args

            def in_child() -> msgspec.Raw:
                try:
                    kind, answer = call_back()
                except (EOFError, OSError):
                    # The child has died: that is no error of the step.
                    raise asyncio.CancelledError from None
                if kind == RETURNED:
                    return msgspec.Raw(answer)
                self._failed = error_of(answer)
                raise self._failed

            return bytes(context._step(what, in_child, (), {}, rules))
        if name == "on_failure":
            qualname, registered = args

            async def undo() -> None:
                await self._undo(registered)

            undo.__qualname__ = qualname
            return context.on_failure(undo)
        if name == "call":
            job, arguments, options, meta = args
            raw = ResultCodec(job, msgspec.Raw)
            call = JobCall(job, arguments, options, raw, None, meta)
            [called] = context.verbs.run(lambda: [context.call_of(call)])
            self._calls[called.number] = called
            return called.number
        if name == "gather":
            for number, is_detached in args:
                self._calls[number].is_detached = is_detached
            found = context.gather(*(self._calls[number] for number, _ in args), **kwargs)
            return [value if isinstance(value, BaseException) else bytes(value) for value in found]
        return getattr(context, name)(*args, **kwargs)
