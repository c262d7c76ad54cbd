"""Jobs for child processes, which import this module."""

import os
import signal
import time

import pelton
from pelton.queue import JobContext
from tests.queue.helpers import FAST

jobs = pelton.Jobs()


class LocalError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("its constructor needs two")


@jobs.job(process=True)
def square(context: JobContext, n: int) -> dict[str, object]:
    context.progress(0.5, "half")
    return {"n": n * n, "pid": os.getpid(), "seen": [context.id, context.key, context.attempt, context.queue]}


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
    if what == "result":
        return object()
    raise KeyError(what)


@jobs.job(process=True)
def asks(context: JobContext) -> int:
    if context.attempt == 1 and not context.last_error:
        raise pelton.RetryJob(0.0, "once more")
    context.emit("effects.a", b"from a child")
    return context.attempt
