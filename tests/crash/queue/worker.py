"""A worker that may be killed at any moment: ``python -m tests.crash.queue.worker <store> <log>``.

Every attempt appends its events to the log, stamped with the machine's monotonic clock: one line, one
write, with O_APPEND, so that lines of several processes never mix. Its effect is a message, emitted with the
job's completion; it carries the same facts.
"""

import asyncio
import os
import sys
import time

import msgspec

import pelton
from pelton.api import Backoff
from pelton.queue import Job, JobContext, Queue
from tests.kit.judge.history import JobEvent

QUEUE = "crash"
LEASE_S = float(os.environ.get("LEASE_S", "0.5"))
# Every second attempt of some fails, and those of a killed worker count.
MAX_ATTEMPTS = 20
EFFECTS = "effects"


class Log:
    """The log of events, written by all processes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, context: JobContext) -> JobEvent:
        event = JobEvent(
            kind=kind,  # type: ignore[arg-type]
            key=context.key,
            job=context.id,
            at=time.monotonic_ns(),
            worker=context.worker,
            token=context.token,
            attempt=context.attempt,
        )
        os.write(self._file, msgspec.json.encode(event) + b"\n")
        return event


def register(queue: Queue, log: Log) -> Job[[int], None]:
    """Register the job: some runs are quick, some take a while, some fail, some block the loop."""

    @queue.job(max_attempts=MAX_ATTEMPTS, backoff=Backoff(base=0.02, cap=0.05))
    async def work(number: int, context: JobContext) -> None:
        log.write("start", context)
        try:
            await asyncio.sleep(number % 5 * 0.004)
            if number % 11 == 0:
                time.sleep(0.02)
            if number % 7 == 0 and context.attempt % 2:
                raise ValueError("it fails now and then")
            effect = msgspec.structs.replace(log.write("end", context), kind="finished")
            context.emit(EFFECTS, msgspec.json.encode(effect))
        except BaseException:
            log.write("lost" if context.lost else "end", context)
            raise

    return work


async def main(path: str, log: str) -> None:
    async with pelton.open(path) as jet:
        queue = await jet.queue(QUEUE, exclusive=True, lease=LEASE_S)
        register(queue, Log(log))
        print("ready", flush=True)
        await queue.work(concurrency=4)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
