"""One process that works: alone, or as the child of a supervisor (``python -m pelton.cli.work_process PLAN FD``).

A child shares a socket with its supervisor. It writes a line when it is ready, and stops in order when the other end is
closed: also when the supervisor was killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConfigError, PeltonError
from pelton.api.keys import Key, KeyFile
from pelton.api.wording import without_login
from pelton.cli.arguments import KEY_VARIABLE
from pelton.cli.output import write_line, write_logs
from pelton.connect import open as open_store
from pelton.queue import Jobs
from pelton.runtime import Runtime, memory_bytes, system_runtime

if TYPE_CHECKING:
    from pelton.connect import Jet
    from pelton.queue import Queue

CANNOT_START: Final = 3
"""The exit status of a child that never worked: its jobs can't be imported, or its store can't be opened."""
READY: Final = b"ready\n"
_LOOK_S: Final = 1.0
_log: Final = logging.getLogger("pelton.work")


async def work(plan: WorkPlan, control: socket.socket | None = None) -> None:
    """Run the jobs of a plan until a signal, its number of jobs, or the end of ``control``. Raises PeltonError."""
    jobs = [found_jobs(name) for name in plan.jobs]
    if plan.max_memory is not None and (size := memory_bytes()) > plan.max_memory:
        raise ConfigError(f"--max-memory: before its first job, a process has {size >> 20} MB; give more than that")
    async with open_store(plan.store, key=plan.key(os.environ.get(KEY_VARIABLE))) as jet:
        if plan.otel:
            _instrument(jet)
        queues = [await jet.queue(name, jobs=jobs) for name in plan.queues]
        async with AsyncExitStack() as lifespans:
            for one in jobs:
                # Once for all queues, and before anything is taken.
                await lifespans.enter_async_context(one.hooks.living(jet))
            await _work_until_stopped(queues, plan, control)


async def _work_until_stopped(queues: Sequence[Queue], plan: WorkPlan, control: socket.socket | None) -> None:
    try:
        if control is not None:
            _follow(control, queues)
        await _work_on(queues, plan)
    finally:
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)


def _instrument(jet: Jet) -> None:
    try:
        from pelton import otel
    except ImportError as error:
        raise ConfigError(f"--otel needs {error.name}: pip install 'pelton[otel]'") from None
    otel.instrument(jet)


def _follow(control: socket.socket, queues: Sequence[Queue]) -> None:
    """Say that the process is ready, and stop it when the supervisor closes its end."""
    loop = asyncio.get_running_loop()
    # What a job starts must not keep the connection open.
    control.set_inheritable(False)
    control.setblocking(False)

    def on_end() -> None:
        loop.remove_reader(control)
        for queue in queues:
            queue.stop()

    def ready() -> None:
        # The supervisor may have closed its end already.
        with suppress(OSError):
            control.send(READY)

    loop.add_reader(control, on_end)
    # When the workers have begun: a stop before would find none.
    loop.call_soon(ready)


async def _stop_when_large(queues: Sequence[Queue], limit: int, runtime: Runtime) -> None:
    """Stop, in order, once this process has more than ``limit`` bytes of memory."""
    while (size := memory_bytes()) <= limit:
        await runtime.clock.sleep(_LOOK_S)
    _log.warning("it has %d MB of memory, the limit is %d MB: it takes no more jobs, and ends", size >> 20, limit >> 20)
    for queue in queues:
        queue.stop()


async def _work_on(queues: Sequence[Queue], plan: WorkPlan) -> None:
    """Work on all queues; when one ends, for whatever reason, the others stop too."""
    loop, runtime = asyncio.get_running_loop(), system_runtime()
    watch = None
    if plan.max_memory is not None:
        watch = runtime.spawn(_stop_when_large(queues, plan.max_memory, runtime), "memory")

    async def one(queue: Queue) -> None:
        try:
            await queue.work(concurrency=plan.concurrency, grace=plan.grace, max_jobs=plan.max_jobs)
        finally:
            loop.call_soon(stop_others)

    def stop_others() -> None:
        for queue in queues:
            queue.stop()

    ended = await asyncio.gather(*map(one, queues), return_exceptions=True)
    if watch is not None:
        watch.cancel()
    for error in ended:
        if isinstance(error, BaseException):
            raise error


def main() -> int:
    """Run a child; return its exit status."""
    plan = msgspec.json.decode(sys.argv[1], type=WorkPlan)
    control = socket.socket(fileno=int(sys.argv[2]))
    write_work_logs(plan)
    try:
        asyncio.run(work(plan, control))
    except ConfigError as error:
        write_line(f"pelton work: {error}", error=True)
        return CANNOT_START
    except PeltonError as error:
        write_line(f"pelton work: {error}", error=True)
        return 1
    except Exception:  # of the module with the jobs: a wrong line of it, most often
        for line in traceback.format_exc().splitlines():
            write_line(line, error=True)
        return CANNOT_START
    return 0


# --- what a process works on, and how its jobs are found

_FORM: Final = "give MODULE:ATTRIBUTE, for example shop.jobs:jobs"


class WorkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of one process: ``jobs`` as module:attribute, ``grace`` in seconds, ``max_memory`` in bytes."""

    jobs: tuple[str, ...]
    store: str
    queues: tuple[str, ...]
    concurrency: int = 8
    grace: float = 30.0
    max_jobs: int | None = None
    max_memory: int | None = None
    key_file: str | None = None
    json_logs: bool = False
    otel: bool = False

    def key(self, variable: str | None) -> Key | None:
        """Return the store's key: from its file, or the one that the environment has."""
        return KeyFile(self.key_file) if self.key_file is not None else variable or None


def found_jobs(name: str) -> Jobs:
    """Import the jobs of ``module:attribute``, where the current directory counts. Raises ConfigError."""
    module, _, attribute = name.partition(":")
    if not module or not attribute or module.endswith(".py"):
        raise ConfigError(f"{name!r} names no jobs: {_FORM}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module!r} can't be imported from {here}: {error}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Jobs):
        what = f"is {type(found).__name__}" if found is not None else "is not there"
        raise ConfigError(f"{name!r} {what}: {_FORM}, where the attribute is a pelton.Jobs()")
    return found


# --- the log of processes that work: lines for people, or JSON, one object a line

_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (in UTC), level, logger, process, store, message, traceback, extra fields."""

    def __init__(self, store: str) -> None:
        super().__init__()
        self._store = without_login(store)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        extra = {name: value for name, value in record.__dict__.items() if name not in _OWN}
        return msgspec.json.encode({"store": self._store} | extra | fields, enc_hook=str).decode()


def write_work_logs(plan: WorkPlan) -> None:
    """Write the log to standard error; what Pelton says of its work too."""
    write_logs()
    if plan.json_logs:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter(plan.store))
    logging.getLogger("pelton").setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
