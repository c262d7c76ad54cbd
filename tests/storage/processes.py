"""Real processes for tests: started in milliseconds, controlled over a pipe, killed at will.

Children are forked by a server process that has Pelton imported and never has a store open, so each is as
clean as a fresh interpreter. A test awaits the reports of a child by name; nothing sleeps. A child that stays
silent fails its test after a generous limit.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

_LIMIT_S: Final = 60.0
_context = multiprocessing.get_context("forkserver")
_preloaded: Final = ["pelton", "pelton.testing", "tests.storage.processes"]
_context.set_forkserver_preload(_preloaded)


def preload(module: str) -> None:
    """Have the children of this process forked with a module; call it before the first of them is started."""
    _preloaded.append(module)
    _context.set_forkserver_preload(_preloaded)


Main = Callable[..., Any]


class Child:
    """A process that runs ``main(pipe, *args)``, awaited if it is a coroutine function."""

    def __init__(self, main: Main, *args: Any) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_run, args=(main, theirs, args), daemon=True)
        self.process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def close(self) -> None:
        self.kill()
        self.pipe.close()
        self.process.close()

    def hear(self) -> Any:
        """Return the child's next report; an error that it died of is raised here."""
        assert self.pipe.poll(_LIMIT_S), "the child said nothing"
        said = self.pipe.recv()
        if isinstance(said, _Died):
            raise AssertionError(said.text)
        return said

    async def heard(self) -> Any:
        """The same, while the test's own loop keeps running."""
        return await asyncio.to_thread(self.hear)

    def hear_all(self) -> list[Any]:
        """Return all further reports of the child until it ends."""
        said = []
        while True:
            try:
                said.append(self.hear())
            except (EOFError, ConnectionResetError):
                return said

    def say(self, word: Any) -> None:
        self.pipe.send(word)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(_LIMIT_S)

    def join(self) -> None:
        """Wait for a clean end."""
        self.process.join(_LIMIT_S)
        assert self.process.exitcode == 0


class _Died:
    def __init__(self, text: str) -> None:
        self.text = text


def _run(main: Main, pipe: Connection, args: tuple[Any, ...]) -> None:
    try:
        result = main(pipe, *args)
        if isinstance(result, Awaitable):
            asyncio.run(_awaited(result))
    except BaseException as error:
        pipe.send(_Died(f"the child died of {error!r}"))
        raise


async def _awaited(result: Awaitable[Any]) -> None:
    await result


async def hear_in_child(pipe: Connection) -> Any:
    """In a child: wait for the test's next message while the event loop keeps running."""
    return await asyncio.to_thread(pipe.recv)
