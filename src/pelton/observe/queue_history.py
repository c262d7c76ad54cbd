"""What ended last in a queue: rates, waiting and running times, and which workers did it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from pelton.api import (
    CorruptMessageError,
    MessageNotFoundError,
    StoredMessage,
    StreamInfoRequest,
    StreamNotFoundError,
    StreamState,
    rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.times import SECOND
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.observe.summaries import TimeSpread, WorkerSummary
from pelton.queue import Outcome, WorkerInfo
from pelton.queue.model.naming import QueueNames

_SAMPLE: Final = 100
_MINUTE_NS: Final = 60 * SECOND
_outcome: Final = msgspec.json.Decoder(Outcome).decode
_worker: Final = msgspec.json.Decoder(WorkerInfo).decode
_MOST_WORKERS: Final = 100


async def last_messages(stream: Stream, state: StreamState, count: int) -> list[StoredMessage]:
    """Return the newest messages of a stream, at most ``count``, oldest first."""
    found: list[StoredMessage] = []
    seq = state.last_seq
    while len(found) < count and seq >= state.first_seq > 0:
        try:
            found.append(await stream.get_message(seq))
        except (MessageNotFoundError, CorruptMessageError):
            if state.num_deleted > count:
                # Too many gaps to go back one by one.
                break
        seq -= 1
    return found[::-1]


async def ended_jobs(jet: Jet, queue: str, count: int = _SAMPLE) -> list[Outcome]:
    """Return the outcomes of the jobs that ended last, at most ``count``, the oldest first."""
    try:
        info = await jet.backend.call(StreamInfoRequest(name=QueueNames(queue).history))
    except StreamNotFoundError:
        return []
    stream = Stream(jet.backend, info.config, jet.runtime)
    return [_outcome(message.data) for message in await last_messages(stream, info.state, count)]


def rate(outcomes: Sequence[Outcome], now: int) -> float:
    """Return how many jobs end in a minute: those of the last one, or fewer of which all are known."""
    recent = [one for one in outcomes if now - one.finished_at <= _MINUTE_NS]
    if not recent:
        return 0.0
    # If all of the sample is recent, the sample is shorter than a minute.
    begin = min(one.finished_at for one in recent)
    span = max(now - begin, SECOND) if len(recent) == len(outcomes) >= _SAMPLE else _MINUTE_NS
    return len(recent) * _MINUTE_NS / span


def spread(nanoseconds: Sequence[int]) -> TimeSpread:
    """Return how durations are spread."""
    if not nanoseconds:
        return TimeSpread()
    ordered = sorted(max(one, 0) / SECOND for one in nanoseconds)
    last = len(ordered) - 1
    return TimeSpread(median=ordered[last // 2], p95=ordered[round(last * 0.95)], longest=ordered[last])


def run_times(outcomes: Sequence[Outcome]) -> TimeSpread:
    """Return how the run times of jobs are spread; those that never started have none."""
    return spread([one.finished_at - one.started_at for one in outcomes if one.started_at])


async def worker_summaries(jet: Jet, queue: str) -> list[WorkerSummary]:
    """Return the workers that there are, and those of the jobs that ended last, by name."""
    outcomes = await ended_jobs(jet, queue)
    live = {one.name: one for one in await workers_present(jet, queue)}
    return [
        _summary(queue, name, [one for one in outcomes if one.worker == name], live.get(name))
        for name in sorted({one.worker for one in outcomes} | set(live))
    ]


def _summary(queue: str, name: str, ended: Sequence[Outcome], live: WorkerInfo | None) -> WorkerSummary:
    last = max(ended, key=lambda one: one.finished_at, default=None)
    summary = WorkerSummary(
        queue=queue,
        worker=name,
        ended=len(ended),
        failed=sum(one.state == "failed" for one in ended),
        last_job="" if last is None else last.job,
        last_ended_at="" if last is None else rfc3339(last.finished_at),
    )
    if live is None:
        return summary
    return msgspec.structs.replace(
        summary,
        host=live.host,
        pid=live.pid,
        seen_at=rfc3339(live.seen_at),
        running=live.running,
        oldest_running=live.oldest_running,
        stopping=live.stopping,
    )


async def workers_present(jet: Jet, queue: str) -> list[WorkerInfo]:
    """Return the workers of a queue as each told last, at most the first hundred by name.

    Reads without a consumer, so also from a snapshot.
    """
    names = QueueNames(queue)
    try:
        info = await jet.backend.call(StreamInfoRequest(name=names.running, subjects_filter=names.worker_subject("*")))
    except StreamNotFoundError:
        return []
    stream, found = Stream(jet.backend, info.config, jet.runtime), list[WorkerInfo]()
    for subject in sorted(info.state.subjects or ())[:_MOST_WORKERS]:
        # One that has left meanwhile, or is of another version.
        with suppress(MessageNotFoundError, CorruptMessageError, *UNREADABLE):
            found.append(_worker((await stream.get_last_message(subject)).data))
    return found
