"""Stores that other processes have open, used as if they were here.

A *host* is a process with a store on a manual clock. Its objects are called over a pipe: each call names an object, a
method and its arguments, and is a task of its own there, begun in the order of the calls. Data comes back as it is,
and a handle (a stream, a consumer, a message) as a :class:`Remote`. Hosts outlive the examples of a machine.
"""

from __future__ import annotations

import asyncio
from functools import reduce
from inspect import isawaitable
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import pelton
from pelton.testing import manual_runtime
from tests.storage.processes import Child

_HANDLES: Final = (pelton.Stream, pelton.Consumer, pelton.Message)
_FACTS: Final = ("subject", "data", "delivered", "metadata")
_SELF: Final = 0
"""The number of the host among its objects."""


class _Handle(NamedTuple):
    """An object that stays in the other process, and what is known of it here."""

    number: int
    facts: dict[str, Any]


class _Failed(NamedTuple):
    """An error, in parts that can be sent whatever its constructor wants."""

    kind: type[Exception]
    args: tuple[Any, ...]
    fields: dict[str, Any]

    def error(self) -> Exception:
        error = self.kind.__new__(self.kind)
        error.args = self.args
        error.__dict__.update(self.fields)
        return error


# --- in the other process


class _Host:
    """The objects of a process. It can be asked to open a store, which is its object 1, and to let time pass."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._objects: dict[int, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, path: str, seed: int, elapsed: float) -> None:
        self._numbers = count(2)
        self._runtime = manual_runtime(seed)
        self._runtime.clock.advance(elapsed)
        self._objects = {_SELF: self, 1: await pelton.open(path, sync="off", runtime=self._runtime)}

    async def close(self) -> None:
        jet = self._objects.pop(1, None)
        if jet is not None:
            await jet.close()

    def advance(self, seconds: float) -> None:
        self._runtime.clock.advance(seconds)

    async def run(self) -> None:
        self._objects[_SELF] = self
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def read() -> None:
            try:
                while self._pipe.poll():
                    task = asyncio.ensure_future(self._answer(*self._pipe.recv()))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except EOFError:
                ended.set_result(None)

        asyncio.get_running_loop().add_reader(self._pipe.fileno(), read)
        await ended

    async def _answer(self, call: int, number: int, path: str, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        answer: Any
        try:
            method: Any = reduce(getattr, path.split("."), self._objects[number])
            given = [self._objects[arg.number] if isinstance(arg, _Handle) else arg for arg in args]
            answer = method(*given, **fields)
            answer = self._sendable(await answer if isawaitable(answer) else answer)
        except Exception as error:
            answer = _Failed(type(error), error.args, error.__dict__)
        self._pipe.send((call, answer))

    def _sendable(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._sendable(one) for one in value]
        if not isinstance(value, _HANDLES):
            return value
        number = next(self._numbers)
        self._objects[number] = value
        is_message = isinstance(value, pelton.Message)
        return _Handle(number, {name: getattr(value, name) for name in _FACTS} if is_message else {})


async def host(pipe: Connection) -> None:
    """Answer calls until the pipe is closed."""
    await _Host(pipe).run()


# --- here


class Remote:
    """An object of another process, or a method of one, which is called there when its coroutine is awaited here."""

    def __init__(self, host: Host, number: int, path: str = "", facts: dict[str, Any] | None = None) -> None:
        self._host, self._number, self._path = host, number, path
        self.__dict__.update(facts or {})

    def __getattr__(self, name: str) -> Remote:
        return Remote(self._host, self._number, f"{self._path}.{name}".removeprefix("."))

    def __call__(self, *args: Any, **fields: Any) -> Any:
        given = tuple(_Handle(arg._number, {}) if isinstance(arg, Remote) else arg for arg in args)
        return self._host.call(self._number, self._path, given, fields)


class Host:
    """A process with a store, as long as it is not killed."""

    def __init__(self) -> None:
        self._child = Child(host)
        self._calls = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.itself = Remote(self, _SELF)
        self.jet: Any = Remote(self, 1)

    async def call(self, number: int, path: str, args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
        """Call a method there, and return what it returns, or raise its error."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._child.pipe.fileno(), self._read)
        call = next(self._calls)
        self._answers[call] = self._loop.create_future()
        self._child.say((call, number, path, args, fields))
        answer = await self._answers[call]
        if isinstance(answer, _Failed):
            raise answer.error()
        return self._own(answer)

    def _read(self) -> None:
        try:
            while self._child.pipe.poll():
                call, answer = self._child.hear()
                self._answers.pop(call).set_result(answer)
        except (EOFError, AssertionError) as error:
            for waiting in self._answers.values():
                waiting.set_exception(AssertionError(f"the process has ended: {error}"))
            self._answers.clear()
            self.leave()

    def _own(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._own(one) for one in value]
        return Remote(self, value.number, facts=value.facts) if isinstance(value, _Handle) else value

    def leave(self) -> None:
        """Forget the event loop: the next call comes from another one."""
        if self._loop is not None:
            self._loop.remove_reader(self._child.pipe.fileno())
            self._loop = None

    def kill(self) -> None:
        """End the process at once."""
        self.leave()
        self._child.close()
