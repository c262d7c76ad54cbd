"""Jobs for child processes, which import this module."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pelton
from pelton.queue import JobContext
from tests.queue.helpers import FAST

jobs = pelton.Jobs()


class HostileError(Exception):
    def __str__(self) -> str:
        raise SystemExit

    def __reduce__(self) -> str:
        raise KeyboardInterrupt


class LocalError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("its constructor needs two")


@jobs.job(process=True)
def square(context: JobContext, n: int) -> dict[str, object]:
    context.progress(0.5, "half")
    return {
        "n": n * n,
        "pid": os.getpid(),
        "seen": [context.id, context.key, context.attempt, context.queue, context.meta],
    }


@jobs.job(process=True, max_attempts=2, backoff=FAST)
def poison(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV)


@jobs.job(process=True, timeout=0.2, max_attempts=1)
def endless() -> None:
    while True:
        time.sleep(0.01)


@jobs.job(process=True)
def long(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(3600)


@jobs.job(process=True, max_attempts=1, permanent=KeyError)
def broken(what: str) -> object:
    if what == "local":
        raise LocalError(1, 2)
    if what == "hostile":
        raise HostileError
    if what == "result":
        return object()
    raise KeyError(what)


@jobs.job(process=True)
def asks(context: JobContext) -> int:
    if context.attempt == 1 and not context.last_error:
        raise pelton.RetryJob(0.0, "once more")
    context.emit("effects.a", b"from a child")
    return context.attempt


@jobs.job(process=True, max_attempts=1)
def forked(n: int, how: str) -> int:
    """Fork; the copy comes back from this function first."""
    copy = os.fork()
    if copy:
        os.waitpid(copy, 0)
        return n * n
    if how == "raises":
        raise ValueError("in a copy")
    if how == "exits":
        sys.exit(3)
    return -n


@jobs.job(process=True, timeout=0.2, max_attempts=1)
def left_behind(how: str, path: str) -> None:
    """End badly while a process that it has forked goes on."""
    copy = os.fork()
    if copy == 0:
        time.sleep(3600)
    with open(path, "w") as file:
        file.write(str(copy))
    if how == "exit":
        os._exit(3)
    time.sleep(3600)


@jobs.job(process=True, max_attempts=1)
def pooled(numbers: list[int]) -> list[int]:
    with multiprocessing.Pool(2) as pool:
        return pool.map(abs, numbers)


@jobs.job(process=True, max_attempts=1)
def terminates() -> int:
    """Stop a program that it has started, as programs are."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    program.terminate()
    return program.wait()


@jobs.job(process=True, max_attempts=1)
def closes(path: str) -> None:
    """Close what is open, as daemons do, and open something else in its place."""
    os.closerange(3, 256)
    while os.open(path, os.O_RDWR) < 64:
        pass


@jobs.job(process=True, max_attempts=1)
def meddles(what: str) -> str:
    if what == "signals":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 60)
        return what
    sys.stdout.close()
    raise ValueError(what)


@jobs.job(process=True, max_attempts=1)
def left_over() -> tuple[float, bool]:
    """Return what is left of a timer, and survive a signal."""
    os.kill(os.getpid(), signal.SIGTERM)
    return signal.getitimer(signal.ITIMER_REAL)[0], True


@jobs.job(process=True)
def starts_others(path: str) -> None:
    """Fork, and start a program, and write down their processes."""
    copy = os.fork()
    if copy == 0:
        time.sleep(3600)
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(f"{path}.new", "w") as file:
        file.write(f"{os.getpid()} {copy} {program.pid}")
    os.rename(f"{path}.new", path)
    time.sleep(3600)


async def work(path: str) -> None:
    async with pelton.open(path, sync="off") as jet:
        await (await jet.queue("garage", jobs=jobs)).work()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))


def add_line(path: str, line: str) -> str:
    with open(path, "a") as file:
        file.write(f"{line}\n")
    return f"{line} {os.getpid()} {threading.get_ident()}"


def decline(path: str) -> None:
    add_line(path, "declined")
    raise HomemadeError("no seats")


class HomemadeError(Exception):
    """One that a job catches."""


@dataclass
class Decision:
    by: str


@jobs.job
async def child(n: int) -> list[int]:
    if n < 0:
        raise pelton.PermanentJobError("less than nothing")
    return [n]


def third_time(path: str) -> bool:
    with open(path) as file:
        tried = file.read().count("tried")
    if tried < 2:
        add_line(path, "tried")
        raise HomemadeError("not yet")
    return True


def saga(context: JobContext, path: str, how: str) -> Any:
    # Its blocking face, which is slow to import, has the types.
    verbs: Any = context
    add_line(path, "start")
    here = f"{os.getpid()} {threading.get_ident()}"
    first = verbs.step("first", add_line, path, "first")
    assert verbs.options(max_attempts=3, backoff=[1.01, 0.01]).step("third time", third_time, path)
    assert verbs.changed("second")
    verbs.on_failure(add_line, path, "undo first")
    try:
        verbs.step("declined", decline, path)
    except HomemadeError:
        verbs.on_failure(add_line, path, line="undo declined")
    verbs.publish("quote", [first, verbs.now().isoformat(), verbs.random(), str(verbs.uuid())])
    verbs.sleep(0.01)
    try:
        decision = verbs.wait_for("approved", Decision)
    except Exception as error:
        add_line(path, f"except Exception catches {error!r}")
        raise
    except BaseException:
        if how == "swallows":
            return "not waited for"
        raise
    assert isinstance(decision, Decision)
    with suppress(pelton.SignalTimeoutError):
        verbs.wait_for("never", timeout=0)
    assert verbs.wait_for("never", timeout=0, default="none") == "none"
    called = verbs.call(child, 1).value()
    several = verbs.gather(*(verbs.call(child.options(priority=n), n) for n in range(3)), at_once=2)
    failed = verbs.gather(verbs.call(child, -1), return_exceptions=True)
    last = verbs.step("last", add_line, path, "last")
    if how == "fails":
        raise pelton.PermanentJobError("no weather")
    return [decision.by, called, several, type(failed[0]).__name__, last == f"last {here}"]


saga_on_thread = jobs.job(name="saga_on_thread", max_attempts=2, backoff=FAST)(saga)
saga_in_process = jobs.job(name="saga_in_process", process=True, max_attempts=2, backoff=FAST)(saga)


def die(path: str) -> int:
    add_line(path, "x")
    if os.path.getsize(path) < 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@jobs.job(process=True, max_attempts=2, backoff=FAST)
def dies_in_step(context: JobContext, path: str) -> bool:
    verbs: Any = context
    return bool(verbs.step("die", die, path) == os.getpid())


def forks(context: JobContext) -> list[object]:
    verbs: Any = context
    if not (pid := os.fork()):
        try:
            verbs.step("in a copy", int)
        except pelton.JobError:
            os._exit(7)
        os._exit(8)
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda n: verbs.step(f"step {n}", int, n), range(8)))
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), values]


forks_on_thread = jobs.job(name="forks_on_thread")(forks)
forks_in_process = jobs.job(name="forks_in_process", process=True)(forks)
