"""Worker processes of the tests: ``python -m tests.queue.roles <role> <store> <lease>``."""

import asyncio
import os
import signal
import sys
import threading

from pelton.queue import JobContext, Queue
from tests.queue.helpers import FAST, open_store

QUEUE = "shop"


def say(*words: object) -> None:
    print(*words, flush=True)


def register(queue: Queue) -> None:
    """Register the jobs, the same in the test and in its children."""

    @queue.job(max_attempts=3, backoff=FAST)
    async def poison(context: JobContext) -> None:
        say("started", context.attempt)
        os._exit(9)

    @queue.job
    async def hold(context: JobContext) -> str:
        """Run until the worker stops, and then until a line comes in."""
        say("started", context.attempt, context.token)
        while not context.stopping:
            await asyncio.sleep(0.005)
        say("stopping")
        await asyncio.to_thread(sys.stdin.readline)
        return f"attempt {context.attempt}"

    @queue.job
    async def endless(context: JobContext) -> None:
        say("started", context.attempt, context.token)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say("cancelled", "lost" if context.lost else "kept")
            raise

    @queue.job
    def thread(context: JobContext) -> str:
        say("started", context.attempt, context.token)
        sys.stdin.readline()
        say("lost" if context.lost else "kept", "stopping" if context.stopping else "working")
        return f"attempt {context.attempt}"

    @queue.job
    def thread_until_lost(context: JobContext) -> str:
        say("started", context.attempt, context.token)
        while not context.lost:
            threading.Event().wait(0.005)
        say("lost")
        context.emit("effects.late", b"must never be seen")
        return "late"

    @queue.job
    async def quick(number: int) -> int:
        return os.getpid() if number else 0


async def serve(queue: Queue, order: str) -> None:
    """Act as a web server: it handles SIGTERM, and runs a worker beside its own work until it is told to end."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(*_: object) -> None:
        say("told")
        loop.call_soon_threadsafe(told.set)

    def install() -> None:
        if order == "of-the-loop":
            loop.add_signal_handler(signal.SIGTERM, on_signal)
        else:
            signal.signal(signal.SIGTERM, on_signal)

    if order != "late":
        install()
    work = asyncio.create_task(queue.work())
    while not (await queue.counts()).running:
        await asyncio.sleep(0.005)
    if order == "late":
        install()
    say("serving")
    await told.wait()
    queue.stop()
    await work
    say("after", signal.getsignal(signal.SIGTERM) is on_signal)


async def main(role: str, path: str, lease: str, grace: str = "10") -> None:
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=True, lease=float(lease))
        register(queue)
        say("ready")
        if role == "drain":
            await queue.work(until_empty=True, concurrency=2)
        elif role == "serve":
            await serve(queue, grace)
        else:
            await queue.work(concurrency=2, grace=float(grace))
        say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
