"""One process that works: alone, or as the child of a supervisor (``python -m pelton.cli.work.process PLAN FD``).

A child shares a socket with its supervisor. It writes a line when it is ready, and stops in order when the other end is
closed: also when the supervisor was killed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConfigError, PeltonError
from pelton.cli.keys import VARIABLE
from pelton.cli.output import write_line
from pelton.cli.work.logs import write_work_logs
from pelton.cli.work.plan import WorkPlan, found_jobs
from pelton.connect import open as open_store

if TYPE_CHECKING:
    from pelton.connect import Jet
    from pelton.queue import Jobs, Queue

CANNOT_START: Final = 3
"""The exit status of a child that never worked: its jobs can't be imported, or its store can't be opened."""
READY: Final = b"ready\n"


async def work(plan: WorkPlan, control: socket.socket | None = None) -> None:
    """Run the jobs of a plan until a signal, its number of jobs, or the end of ``control``. Raises PeltonError."""
    jobs = [found_jobs(name) for name in plan.jobs]
    async with open_store(plan.store, key=plan.key(os.environ.get(VARIABLE))) as jet:
        if plan.otel:
            _instrument(jet)
        queues = await _queues(jet, plan.queues, jobs)
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


async def _queues(jet: Jet, names: Sequence[str], jobs: Sequence[Jobs]) -> list[Queue]:
    return [await jet.queue(name, jobs=jobs) for name in names]


def _follow(control: socket.socket, queues: Sequence[Queue]) -> None:
    """Say that the process is ready, and stop it when the supervisor closes its end."""
    loop = asyncio.get_running_loop()
    # What a job starts must not keep the connection open.
    control.set_inheritable(False)
    control.setblocking(False)

    def ended() -> None:
        loop.remove_reader(control)
        for queue in queues:
            queue.stop()

    def ready() -> None:
        # The supervisor may have closed its end already.
        with suppress(OSError):
            control.send(READY)

    loop.add_reader(control, ended)
    # When the workers have begun: a stop before would find none.
    loop.call_soon(ready)


async def _work_on(queues: Sequence[Queue], plan: WorkPlan) -> None:
    """Work on all queues; when one ends, for whatever reason, the others stop too."""
    loop = asyncio.get_running_loop()

    async def one(queue: Queue) -> None:
        try:
            await queue.work(concurrency=plan.concurrency, grace=plan.grace, max_jobs=plan.max_jobs)
        finally:
            loop.call_soon(stop_others)

    def stop_others() -> None:
        for queue in queues:
            queue.stop()

    ended = await asyncio.gather(*map(one, queues), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error


def main() -> int:
    """Run a child; return its exit status."""
    plan = msgspec.json.decode(sys.argv[1], type=WorkPlan)
    control = socket.socket(fileno=int(sys.argv[2]))
    write_work_logs(json=plan.json_logs)
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


if __name__ == "__main__":
    sys.exit(main())
