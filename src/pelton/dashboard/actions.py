"""What a viewer can change: each operation with its question, what it does, and the role that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from pelton import observe
from pelton.api import ConfigError, JobNotFoundError, rfc3339
from pelton.api.times import SECOND
from pelton.connect import Jet
from pelton.dashboard.access import Role
from pelton.jet import Stream
from pelton.observe.holdings import kind_of

_MOST_REDRIVEN: Final = 1000
_PAUSE_S: Final = 3600
_REASON: Final = "on the dashboard"


class Operation(NamedTuple):
    """One thing to do with a queue or a stream, by its name; ``of`` says what of it an id names, if anything."""

    question: str
    done: str
    do: Callable[[Jet, str, str], Awaitable[object]]
    of: str = ""
    role: Role = "act"


async def _pause(jet: Jet, queue: str, _id: str) -> None:
    await (await jet.queue(queue, create=False)).pause()


async def _resume(jet: Jet, queue: str, _id: str) -> None:
    await (await jet.queue(queue, create=False)).resume()


async def _purge_queue(jet: Jet, queue: str, _id: str) -> None:
    await (await jet.queue(queue, create=False)).purge()


async def _cancel(jet: Jet, queue: str, job_id: str) -> None:
    await (await jet.queue(queue, create=False)).cancel(job_id, reason=_REASON)


async def _redrive(jet: Jet, queue: str, job_id: str) -> None:
    await (await jet.queue(queue, create=False)).redrive(job_id)


async def _redrive_all(jet: Jet, queue: str, _id: str) -> None:
    ids = list[str]()
    async with aclosing(observe.dead_letters(jet, queue)) as letters:
        async for letter in letters:
            ids.append(letter.outcome.id)
            if len(ids) == _MOST_REDRIVEN:
                break
    opened = await jet.queue(queue, create=False)
    for job_id in ids:
        try:
            await opened.redrive(job_id)
        except JobNotFoundError:
            # Somebody else was faster.
            continue


async def _cancel_flow(jet: Jet, queue: str, flow_id: str) -> None:
    await (await jet.queue(queue, create=False)).flow(flow_id).cancel(reason=_REASON)


async def _pause_schedule(jet: Jet, queue: str, schedule: str) -> None:
    await (await jet.queue(queue, create=False)).pause_schedule(schedule)


async def _resume_schedule(jet: Jet, queue: str, schedule: str) -> None:
    await (await jet.queue(queue, create=False)).resume_schedule(schedule)


async def _run_schedule(jet: Jet, queue: str, schedule: str) -> None:
    await (await jet.queue(queue, create=False)).run_schedule(schedule)


async def _pause_consumer(jet: Jet, stream: str, consumer: str) -> None:
    until = rfc3339(jet.runtime.clock.now() + _PAUSE_S * SECOND)
    await (await (await jet.stream(stream)).consumer(consumer)).pause(until)


async def _resume_consumer(jet: Jet, stream: str, consumer: str) -> None:
    await (await (await jet.stream(stream)).consumer(consumer)).resume()


async def _purge_stream(jet: Jet, stream: str, _id: str) -> None:
    await (await plain_stream(jet, stream)).purge()


async def plain_stream(jet: Jet, name: str) -> Stream:
    """Return a stream that its users fill themselves. Raises ConfigError for one of a queue, a bucket and the like."""
    stream = await jet.stream(name)
    if (kind := kind_of(stream.config)) != "stream":
        raise ConfigError(f"stream {name} belongs to a thing of its own ({kind}), which this would damage")
    return stream


QUEUE_OPERATIONS: Final = {
    "redrive": Operation(
        "Put this failed job into the queue again?", "The job is in the queue again.", _redrive, of="job"
    ),
    "redrive-all": Operation(
        f"Put failed jobs into the queue again, at most {_MOST_REDRIVEN} of them?",
        "The failed jobs are in the queue again.",
        _redrive_all,
    ),
    "cancel": Operation("Cancel this job?", "The job is cancelled, by its worker if it runs.", _cancel, of="job"),
    "pause": Operation("Start no more jobs of this queue, in any process?", "The queue is paused.", _pause),
    "resume": Operation("Start jobs of this queue again?", "The queue goes on.", _resume),
    "purge": Operation(
        "Cancel all jobs of this queue that no worker holds?",
        "The jobs that waited are cancelled.",
        _purge_queue,
        role="administer",
    ),
    "cancel-flow": Operation(
        "Cancel this flow? Jobs that wait never start, the others are cancelled.",
        "The flow is cancelled.",
        _cancel_flow,
        of="flow",
    ),
    "pause-schedule": Operation(
        "Enqueue no more jobs of this schedule?", "The schedule is paused.", _pause_schedule, of="schedule"
    ),
    "resume-schedule": Operation(
        "Enqueue jobs of this schedule again?", "The schedule goes on.", _resume_schedule, of="schedule"
    ),
    "run-schedule": Operation(
        "Enqueue the job of this schedule now?", "A job of the schedule is in the queue.", _run_schedule, of="schedule"
    ),
}
STREAM_OPERATIONS: Final = {
    "pause-consumer": Operation(
        "Deliver no messages to this consumer for an hour?", "The consumer is paused.", _pause_consumer, of="consumer"
    ),
    "resume-consumer": Operation(
        "Deliver messages to this consumer again?", "The consumer goes on.", _resume_consumer, of="consumer"
    ),
    "purge-stream": Operation(
        "Remove all messages of this stream, for good?",
        "The messages are removed.",
        _purge_stream,
        role="administer",
    ),
}
DONE: Final = {
    "publish": "The message is stored.",
    **{name: one.done for name, one in (QUEUE_OPERATIONS | STREAM_OPERATIONS).items()},
}
"""The message after an operation was carried out."""
