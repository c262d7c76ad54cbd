"""How a queue went: a point for each minute of the last day, written by its workers while they tell of themselves.

Servers, and dashboards that may write, do it as well: just when no worker is there, somebody wants to know.

The points of an hour are one message, and a day has 25 places for them, which are written over: so they take the
same space for ever, are there before anybody looks, and go if the queue has no worker for a day. The first worker
that tells something in a new minute writes; the others find it done. Ended jobs and dead letters are counters, of
which the differences tell; the rest is as of the point.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from pelton.api import (
    CorruptMessageError,
    MessageNotFoundError,
    PeltonError,
    StoredMessage,
    StreamInfoRequest,
    StreamNotFoundError,
    headers,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.times import SECOND
from pelton.jet import Stream, Streams
from pelton.jet.backlogs import MINUTE, note_backlogs
from pelton.jet.stream import last_of
from pelton.queue.backing.scan import not_to_be_taken
from pelton.queue.backing.setup import queue_names
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.states import Outcome, decode_outcome

_HOURS: Final = 25
_SAMPLE: Final = 40
_MOST_QUEUES: Final = 200
_SPREAD_S: Final = 10.0
_log: Final = logging.getLogger("pelton.queue")


class TrendPoint(msgspec.Struct, frozen=True, array_like=True):
    """A queue at the end of a ``minute`` since 1970; durations in seconds, of at most 40 jobs that ended in it."""

    minute: int
    ended: int
    """How many jobs have ever ended."""
    dead: int
    """How many have ever become dead letters."""
    depth: int
    """How many are due, and have not ended."""
    wait: float = 0.0
    """From enqueue to the start of the last attempt: the median."""
    wait_p95: float = 0.0
    run: float = 0.0
    """From the start to the end of the last attempt: the median."""
    run_p95: float = 0.0


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[TrendPoint]).decode


async def keep_trends(jet: Streams) -> NoReturn:
    """Write every minute how the consumers and the first queues of a store went, until this is cancelled."""
    clock = jet.runtime.clock
    while True:
        # Of several processes, the others find it done.
        await clock.sleep((MINUTE - clock.now() % MINUTE) / SECOND + jet.runtime.random.uniform(0, _SPREAD_S))
        try:
            await note_backlogs(jet)
            for name in (await queue_names(jet))[:_MOST_QUEUES]:
                # Another one may have written it, or the queue is broken.
                with suppress(PeltonError):
                    await note_trend(jet, QueueNames(name))
        except PeltonError as error:
            _log.debug("how the store went is not written: %s", error)


async def note_trend(jet: Streams, names: QueueNames) -> None:
    """Write the point of the minute that has just ended, unless it is there. Raises PeltonError."""
    minute = jet.runtime.clock.now() // MINUTE - 1
    stream = await jet.stream(names.running)
    subject = names.trend_subject(minute // 60 % _HOURS)
    before = await last_of(stream, subject)
    hour = [one for one in _points_of(before) if one.minute // 60 == minute // 60]
    if hour and minute <= hour[-1].minute <= minute + 1:
        return
    # Later ones are of a clock that went back.
    hour = [one for one in hour if one.minute < minute]
    hour.append(await _point(jet, names, minute))
    # Of two workers that have found nothing, one is refused.
    seen = "0" if before is None else str(before.seq)
    head = headers.encode({headers.TTL: f"{_HOURS}h", headers.EXPECTED_LAST_SUBJECT_SEQUENCE: seen})
    await jet.backend.publish(subject, _encode(hour), head)


async def trend_points(jet: Streams, queue: str, since: int) -> list[TrendPoint]:
    """Return the points of a queue from a time on, in wall nanoseconds of the last day, oldest first."""
    names, first, last = QueueNames(queue), since // MINUTE, jet.runtime.clock.now() // MINUTE
    try:
        stream = await jet.stream(names.running)
    except StreamNotFoundError:
        return []
    found: list[TrendPoint] = []
    for hour in range(max(first // 60, last // 60 - _HOURS + 1), last // 60 + 1):
        with suppress(CorruptMessageError):
            found += _points_of(await last_of(stream, names.trend_subject(hour % _HOURS)))
    return sorted((one for one in found if first <= one.minute <= last), key=lambda one: one.minute)


def _points_of(stored: StoredMessage | None) -> list[TrendPoint]:
    if stored is not None:
        # What another version has written is written over.
        with suppress(*UNREADABLE):
            return _decode(stored.data)
    return []


async def _point(jet: Streams, names: QueueNames, minute: int) -> TrendPoint:
    ended, dead, jobs = [await _counts(jet, name) for name in (names.history, names.dead, names.jobs)]
    outcomes = await _ended_in(await jet.stream(names.history), ended[0], minute)
    waits = [one.started_at - one.enqueued_at for one in outcomes if one.started_at]
    runs = [one.finished_at - one.started_at for one in outcomes if one.started_at]
    depth = jobs[1] - await not_to_be_taken(jet, names)
    return TrendPoint(minute, ended[0], dead[0], max(depth, 0), *_middle_and_p95(waits), *_middle_and_p95(runs))


async def _counts(jet: Streams, name: str) -> tuple[int, int]:
    """Return the last sequence of a stream, and how many messages it has."""
    state = (await jet.backend.call(StreamInfoRequest(name=name))).state
    return state.last_seq, state.messages


async def _ended_in(history: Stream, last_seq: int, minute: int) -> list[Outcome]:
    """Return what ended last, if it ended in a minute."""
    found: list[Outcome] = []
    for seq in range(last_seq, max(last_seq - _SAMPLE, 0), -1):
        try:
            outcome = decode_outcome((await history.get_message(seq)).data)
        except (MessageNotFoundError, CorruptMessageError, *UNREADABLE):
            continue
        if outcome.finished_at // MINUTE < minute:
            break
        found.append(outcome)
    return found


def _middle_and_p95(nanoseconds: Sequence[int]) -> tuple[float, float]:
    ordered = sorted(round(max(one, 0) / SECOND, 4) for one in nanoseconds) or [0.0]
    last = len(ordered) - 1
    return ordered[last // 2], ordered[round(last * 0.95)]
