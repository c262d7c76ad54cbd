"""What a viewer can change: each operation with its question, what it does, and the role that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from pelton import observe
from pelton.api import ConfigError, JobNotFoundError, rfc3339
from pelton.api.times import SECOND
from pelton.api.wording import number_text
from pelton.connect import Jet
from pelton.dashboard.access import Role
from pelton.jet import Stream
from pelton.observe.holdings import kind_of
from pelton.queue import JobState, Queue
from pelton.runtime import Deadline

_MOST_AT_ONCE: Final = 10_000
_FIND_S: Final = 1.0
_DO_S: Final = 5.0
OTHER_COMMANDS: Final = {
    "publish": "pub",
    "signal": "jobs send",
    "limit": "limits set",
    "unlimit": "limits rm",
    "weigh": "queue weigh",
}
"""What has a page of its own, by the verbs of the command line that do the same."""
_OTHERS_DONE: Final = {
    "publish": "The message is stored.",
    "signal": "The signal is sent.",
    "limit": "The limit holds, for what starts from now on.",
    "unlimit": "The limit is taken away.",
    "weigh": "The weight holds, for the next turns.",
}
_PAUSE_S: Final = 3600
_TIMES: Final = ("since", "until", "last")
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
_REASON: Final = "on the dashboard"


class Matches(NamedTuple):
    """The ids of what a list selects; not ``is_whole``: there are, or may be, more."""

    ids: tuple[str, ...]
    is_whole: bool


class Operation(NamedTuple):
    """One thing to do with a queue or a stream, by its name; ``of`` says what of it an id names, if anything.

    ``command`` is the verb of the command line that does the same: so the audit calls it.
    ``find`` finds what a list selects, to do it with all of it, and ``done_many`` is what is told then, with the
    number. ``size`` says of how many things a queue or stream would be emptied. ``is_dangerous``: what is lost is
    lost; ``must_type``: the name has to be typed.
    """

    command: str
    question: str
    done: str
    do: Callable[[Jet, str, str], Awaitable[object]]
    of: str = ""
    role: Role = "act"
    is_dangerous: bool = False
    must_type: bool = False
    done_many: str = ""
    find: Callable[[Jet, str, observe.JobSelection], Awaitable[Matches]] | None = None
    size: Callable[[Jet, str], Awaitable[str]] | None = None


def _on_queue(do: Callable[[Queue, str], Awaitable[object]]) -> Callable[[Jet, str, str], Awaitable[object]]:
    async def call(jet: Jet, name: str, of: str) -> None:
        await do(await jet.queue(name, create=False), of)

    return call


async def _matching_jobs(jet: Jet, queue: str, wanted: observe.JobSelection) -> Matches:
    page = await observe.list_jobs(jet, queue, wanted, limit=_MOST_AT_ONCE, within=_FIND_S)
    return Matches(tuple(job.id for job in page.jobs), not page.cursor)


async def _matching_letters(jet: Jet, queue: str, wanted: observe.JobSelection) -> Matches:
    page = await observe.list_dead_letters(jet, queue, wanted, limit=_MOST_AT_ONCE, within=_FIND_S)
    return Matches(tuple(letter.outcome.id for letter in page.letters), not page.cursor)


def selection_of(asked: Mapping[str, str], now: int) -> observe.JobSelection:
    """Return which jobs or dead letters a page, or a form, asks for; ``last``: how many minutes back."""
    since, until, minutes = (int(text) if _is_number(text := asked.get(name, "")) else 0 for name in _TIMES)
    texts = {name: asked.get(name, "").strip() for name in ("job", "key", "tenant", "error")}
    state: JobState | Literal[""] = next((one for one in JOB_STATES if one == asked.get("state")), "")
    since = max(now - minutes * 60 * SECOND, 0) if minutes else since
    return observe.JobSelection(state=state, since=since, until=until, **texts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


async def do_many(jet: Jet, operation: Operation, name: str, ids: Sequence[str]) -> tuple[int, int]:
    """Do it with each of these, for some seconds at most; return with how many, and how many are left."""
    deadline, done = Deadline(jet.runtime.clock, _DO_S), 0
    for number, job_id in enumerate(ids):
        if deadline.is_over:
            return done, len(ids) - number
        try:
            await operation.do(jet, name, job_id)
            done += 1
        except (JobNotFoundError, ConfigError):
            # Somebody else was faster, or it has ended; or nothing can have this id.
            continue
    return done, 0


async def _count_jobs(jet: Jet, queue: str) -> str:
    found = await observe.queue_summary(jet, queue)
    waiting = found.pending + found.scheduled + found.waiting + found.stuck + found.held + found.retrying
    return f"{number_text(waiting)} jobs wait, {number_text(found.running)} more run and are left"


async def _count_messages(jet: Jet, stream: str) -> str:
    return f"{number_text((await (await plain_stream(jet, stream)).info()).state.messages)} messages are stored"


async def _pause_consumer(jet: Jet, stream: str, consumer: str) -> None:
    until = rfc3339(jet.runtime.clock.now() + _PAUSE_S * SECOND)
    await (await (await jet.stream(stream)).consumer(consumer)).pause(until)


async def plain_stream(jet: Jet, name: str) -> Stream:
    """Return a stream that its users fill themselves. Raises ConfigError for one of a queue, a bucket and the like."""
    stream = await jet.stream(name)
    if (kind := kind_of(stream.config)) != "stream":
        raise ConfigError(f"stream {name} belongs to a thing of its own ({kind}), which this would damage")
    return stream


async def _resume_consumer(jet: Jet, stream: str, consumer: str) -> None:
    await (await (await jet.stream(stream)).consumer(consumer)).resume()


async def _purge_stream(jet: Jet, stream: str, _id: str) -> None:
    await (await plain_stream(jet, stream)).purge()


QUEUE_OPERATIONS: Final = {
    "redrive": Operation(
        "dead redrive",
        "Put this failed job into the queue again?",
        "The job is in the queue again.",
        _on_queue(Queue.redrive),
        of="job",
        done_many="{} failed jobs are in the queue again.",
        find=_matching_letters,
    ),
    "discard": Operation(
        "dead rm",
        "Remove this dead letter? The job cannot be put into the queue again then.",
        "The dead letter is removed; the history keeps how its job ended.",
        _on_queue(Queue.discard),
        of="job",
        role="administer",
        is_dangerous=True,
        done_many="{} dead letters are removed.",
        find=_matching_letters,
    ),
    "cancel": Operation(
        "jobs cancel",
        "Cancel this job?",
        "The job is cancelled, by its worker if it runs.",
        _on_queue(lambda queue, job_id: queue.cancel(job_id, reason=_REASON)),
        of="job",
        is_dangerous=True,
        done_many="{} jobs are cancelled, those that run by their workers.",
        find=_matching_jobs,
    ),
    "pause": Operation(
        "queue pause",
        "Start no more jobs of this queue, in any process?",
        "The queue is paused.",
        _on_queue(lambda queue, _: queue.pause()),
    ),
    "resume": Operation(
        "queue resume",
        "Start jobs of this queue again?",
        "The queue goes on.",
        _on_queue(lambda queue, _: queue.resume()),
    ),
    "purge": Operation(
        "queue purge",
        "Cancel all jobs of this queue that no worker holds?",
        "The jobs that waited are cancelled.",
        _on_queue(lambda queue, _: queue.purge()),
        role="administer",
        is_dangerous=True,
        must_type=True,
        size=_count_jobs,
    ),
    "cancel-flow": Operation(
        "flow cancel",
        "Cancel this flow? Jobs that wait never start, the others are cancelled.",
        "The flow is cancelled.",
        _on_queue(lambda queue, flow_id: queue.flow(flow_id).cancel(reason=_REASON)),
        of="flow",
        is_dangerous=True,
    ),
    "stop-worker": Operation(
        "queue stop-worker",
        "Tell this worker to stop? It takes no more jobs; those that it runs have their grace.",
        "The worker is told to stop.",
        _on_queue(Queue.stop_worker),
        of="worker",
        is_dangerous=True,
        role="administer",
    ),
    "pause-schedule": Operation(
        "cron pause",
        "Enqueue no more jobs of this schedule?",
        "The schedule is paused.",
        _on_queue(Queue.pause_schedule),
        of="schedule",
    ),
    "resume-schedule": Operation(
        "cron resume",
        "Enqueue jobs of this schedule again?",
        "The schedule goes on.",
        _on_queue(Queue.resume_schedule),
        of="schedule",
    ),
    "run-schedule": Operation(
        "cron run",
        "Enqueue the job of this schedule now?",
        "A job of the schedule is in the queue.",
        _on_queue(Queue.run_schedule),
        of="schedule",
    ),
}
STREAM_OPERATIONS: Final = {
    "pause-consumer": Operation(
        "consumer pause",
        "Deliver no messages to this consumer for an hour?",
        "The consumer is paused.",
        _pause_consumer,
        of="consumer",
    ),
    "resume-consumer": Operation(
        "consumer resume",
        "Deliver messages to this consumer again?",
        "The consumer goes on.",
        _resume_consumer,
        of="consumer",
    ),
    "purge-stream": Operation(
        "stream purge",
        "Remove all messages of this stream, for good?",
        "The messages are removed.",
        _purge_stream,
        role="administer",
        is_dangerous=True,
        must_type=True,
        size=_count_messages,
    ),
}
_OPERATIONS: Final = QUEUE_OPERATIONS | STREAM_OPERATIONS


def done_text(asked: Mapping[str, str]) -> str:
    """Return what is told after an operation was carried out, as the address of the page says; empty for none."""
    name, number, left = asked.get("done", ""), asked.get("n", ""), asked.get("left", "")
    operation = _OPERATIONS.get(name)
    if operation is None:
        return _OTHERS_DONE.get(name, "")
    if not operation.done_many or not number.isdecimal():
        return operation.done
    more = "" if left in ("", "0") else " This took long: there are more, do it again for those."
    return operation.done_many.format(number_text(int(number[:9]))) + more
