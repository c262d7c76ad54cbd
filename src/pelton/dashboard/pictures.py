"""One picture of the store for all viewers, and how the lag of consumers went while somebody watched.

**One picture of the store for all viewers: it is taken when somebody asks and the last one is too old.** What changes
on a page has a name, such as ``queue.garage.pending``; a picture is its texts by name, and viewers are sent those that
differ from the picture before.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple

from pelton import observe
from pelton.api import PeltonError
from pelton.api.wording import age_text, bytes_text, number_text, span_text, visible_text
from pelton.connect import Jet
from pelton.dashboard.view import since_text
from pelton.observe.holdings import INTERNAL
from pelton.queue import WorkerInfo

_EVERY_S: Final = 10.0
_MOST: Final = 60
_HEIGHT: Final = 20
_NONE: Final[deque[tuple[float, int]]] = deque()


class LagSample(NamedTuple):
    """The lag of a consumer, by its name, at the time of a picture."""

    name: str
    lag: int


class LagHistory:
    """The last values of some consumers."""

    def __init__(self) -> None:
        self._values: dict[str, deque[tuple[float, int]]] = {}

    def add(self, at: float, samples: Iterable[LagSample]) -> None:
        """Note how it is at a time, in seconds that only grow; consumers that are not named are forgotten."""
        kept: dict[str, deque[tuple[float, int]]] = {}
        for sample in samples:
            values = kept[sample.name] = self._values.get(sample.name) or deque(maxlen=_MOST)
            if values and values[-1][0] // _EVERY_S == at // _EVERY_S:
                # Of each ten seconds, the last one is kept.
                values.pop()
            values.append((at, sample.lag))
        self._values = kept

    def points(self, name: str) -> str:
        """Return the values as points of a line, 60 wide and 20 high, the newest to the right."""
        if not (values := self._values.get(name)):
            return ""
        end, top = values[-1][0], max(lag for _, lag in values) or 1
        return " ".join(
            f"{_MOST - (end - at) / _EVERY_S:.3g},{_HEIGHT - 1 - (_HEIGHT - 2) * lag / top:.3g}" for at, lag in values
        )

    def text(self, name: str) -> str:
        """Return in words how it was when it was noted first; empty while there is one value."""
        if len(values := self._values.get(name, _NONE)) < 2:
            return ""
        return f"was {number_text(values[0][1])} {span_text(float(round(values[-1][0] - values[0][0])))} ago"


Rows = list[list[str]]
ROWS: Final = 200
"""How many streams, consumers and queues the pages list."""
_WATCHED: Final = 20
"""Of how many queues the workers are live."""
_LINES: Final = 50
"""How many consumers, those most behind, have their lag drawn over time."""
_COUNTS: Final = (
    "pending", "scheduled", "waiting", "stuck", "held", "running", "retrying",
    "completed", "failed", "cancelled", "expired",
    "dead_letters", "per_minute",
)  # fmt: skip


class Picture:
    """What the store held at one moment."""

    def __init__(
        self,
        number: int,
        at: float,
        now: int,
        streams: Sequence[observe.StreamSummary],
        consumers: Sequence[observe.ConsumerSummary],
        queues: Sequence[observe.QueueSummary],
        workers: Mapping[str, Sequence[observe.WorkerSummary]],
        health: observe.HealthFacts,
        lags: LagHistory,
        before: Picture | None,
    ) -> None:
        self.number = number
        self.at = at
        self.now = now
        self.streams = streams
        self.consumers = consumers
        self.queues = queues
        self.health = health
        self.alarms: list[observe.Alarm] = observe.alarms_of(health)
        self.internal: set[str] = {one.name for one in streams if one.kind in INTERNAL}
        """The streams that nobody knows who knows queues."""
        self.workers = workers
        # As of now: the history goes on.
        self._lags = {
            f"{name}.{part}": text
            for name in map(_name_of, consumers[:_LINES])
            for part, text in (("lag_line", lags.points(name)), ("lag_was", lags.text(name)))
        }
        self._last = {one.name: one.last_seq for one in streams}
        self._rates = {} if before is None else self._rates_since(before)
        # Not the picture itself, which would keep all pictures before it.
        self._texts_before = {} if before is None else before.texts

    def _rates_since(self, before: Picture) -> dict[str, float]:
        seconds = self.at - before.at
        known = before._last if seconds > 0 else {}
        return {name: max(last - known[name], 0) / seconds for name, last in self._last.items() if name in known}

    @cached_property
    def texts(self) -> dict[str, str | Rows]:
        """Everything that changes on a page, by name: a text, or the rows of a table."""
        return dict(self._texts())

    def _texts(self) -> Iterator[tuple[str, str | Rows]]:
        count = len(self.alarms)
        yield "store.health", f"{number_text(count)} alarm{'s' * (count > 1)}" if count else "All is well"
        yield "store.state", "bad" if count else "good"
        yield "store.alarms", [[one.queue or "store", visible_text(one.text), one.kind] for one in self.alarms]
        yield "store.workers", present_rows(self.health.workers, self.now)
        yield "store.streams", number_text(len(self.streams))
        yield "store.consumers", number_text(len(self.consumers))
        yield "store.messages", number_text(sum(one.messages for one in self.streams))
        yield "store.bytes", bytes_text(sum(one.bytes for one in self.streams))
        yield "store.rate", number_text(sum(self._rates.values()))
        for stream in self.streams[:ROWS]:
            name = f"stream.{stream.name}"
            yield f"{name}.messages", number_text(stream.messages)
            yield f"{name}.bytes", bytes_text(stream.bytes)
            yield f"{name}.rate", number_text(self._rates.get(stream.name, 0.0))
            yield f"{name}.last", since_text(stream.last_at, self.now)
        for consumer in self.consumers[:ROWS]:
            name = _name_of(consumer)
            for field in ("pending", "ack_pending", "redelivered", "waiting_pulls", "lag"):
                yield f"{name}.{field}", number_text(getattr(consumer, field))
        yield from self._lags.items()
        for name, workers in self.workers.items():
            yield f"queue.{name}.workers", worker_rows(workers, self.now)
        for queue in self.queues:
            yield from self._queue(queue)

    def _queue(self, queue: observe.QueueSummary) -> Iterator[tuple[str, str]]:
        name = f"queue.{queue.name}"
        yield f"{name}.state", self._state_of(queue)
        for field in _COUNTS:
            yield f"{name}.{field}", number_text(getattr(queue, field))
        yield f"{name}.oldest", since_text(queue.oldest_at, self.now)
        yield f"{name}.last_ended", since_text(queue.last_ended_at, self.now)
        for kind, spread in (("wait", queue.wait), ("run", queue.run)):
            for field in ("median", "p95", "longest"):
                yield f"{name}.{kind}.{field}", span_text(getattr(spread, field)) if queue.last_ended_at else "-"

    def _state_of(self, queue: observe.QueueSummary) -> str:
        """Return what is gravest of a queue, or else whether it has something to do."""
        found: str = next((one.kind for one in self.alarms if one.queue == queue.name), "")
        return found or ("working" if queue.pending or queue.running or queue.retrying or queue.held else "idle")

    @cached_property
    def whole_event(self) -> bytes:
        return self._event(self.texts)

    @cached_property
    def change_event(self) -> bytes:
        before = self._texts_before
        return self._event({name: text for name, text in self.texts.items() if before.get(name) != text})

    def _event(self, texts: dict[str, str | Rows]) -> bytes:
        return f"id: {self.number}\ndata: {json.dumps(texts)}\n\n".encode()


def present_rows(workers: Mapping[str, Sequence[WorkerInfo]], now: int) -> Rows:
    """Return the cells of the table of the workers of all queues, those with the longest running job first."""
    of_all = [(queue, one) for queue, ones in workers.items() for one in ones]
    of_all.sort(key=lambda entry: -entry[1].oldest_running if entry[1].running else 0.0)
    return [
        [
            visible_text(one.name),
            queue,
            "stopping" if one.stopping else "running" if one.running else "idle",
            f"{number_text(one.running)} of {number_text(one.concurrency)}",
            span_text(one.oldest_running) if one.running else "-",
            number_text(one.finished),
            bytes_text(one.memory) if one.memory else "-",
            visible_text(f"{one.host}, {one.pid}"),
            age_text(one.started_at, now) or "-",
            since_text(one.seen_at, now),
        ]
        for queue, one in of_all[:ROWS]
    ]


def worker_rows(workers: Sequence[observe.WorkerSummary], now: int) -> Rows:
    """Return the cells of the table of workers."""
    return [
        [
            visible_text(one.worker) or "none (cancelled or expired)",
            visible_text(f"{one.host}, {one.pid}") + ", stopping" * one.stopping if one.seen_at else "gone",
            since_text(one.seen_at, now),
            number_text(one.running) if one.seen_at else "-",
            span_text(one.oldest_running) if one.running else "-",
            number_text(one.ended),
            number_text(one.failed),
            visible_text(one.last_job),
            since_text(one.last_ended_at, now),
        ]
        for one in workers
    ]


def _name_of(consumer: observe.ConsumerSummary) -> str:
    return f"consumer.{consumer.stream}.{consumer.name}"


class Snapshots:
    """The last picture, and the next when it is older than ``every`` seconds."""

    def __init__(self, jet: Jet, every: float, path: str = "") -> None:
        self._jet = jet
        self._every = every
        self._path = path
        self._taking = asyncio.Lock()
        self._last: Picture | None = None
        self._lags = LagHistory()
        self._is_outdated = False
        self._retry_at = 0.0
        self.changes: int = 0

    async def latest(self) -> Picture:
        """Return the last picture, or a new one if it is too old; who comes meanwhile gets the same."""
        async with self._taking:
            last = self._last
            age = 0.0 if last is None else self._jet.runtime.clock.monotonic() - last.at
            if last is None or self._is_outdated or age >= self._every:
                self._is_outdated = False
                try:
                    last = self._last = await self._take()
                except PeltonError:
                    self._retry_at = self._jet.runtime.clock.monotonic() + self._every
                    raise
            return last

    async def health(self) -> dict[str, str | Rows]:
        """Return what every page says in its header."""
        # The page of an error does not wait again for what has just failed.
        if self._jet.runtime.clock.monotonic() >= self._retry_at:
            with suppress(PeltonError):
                texts = (await self.latest()).texts
                return {name: texts[name] for name in ("store.health", "store.state")}
        return {"store.health": "It cannot be looked at", "store.state": "bad"}

    def forget(self) -> None:
        """Take a new picture next: somebody has changed something."""
        self._is_outdated = True
        self.changes += 1

    async def _take(self) -> Picture:
        jet, clock = self._jet, self._jet.runtime.clock
        # What users made comes before the streams of queues, and those who are most behind before others.
        streams = sorted(
            await observe.stream_summaries(jet), key=lambda one: (one.kind in INTERNAL, one.kind != "stream", one.name)
        )
        internal = {one.name for one in streams if one.kind in INTERNAL}
        consumers = sorted(
            await observe.consumer_summaries(jet),
            key=lambda one: (one.stream in internal, -one.lag, one.stream, one.name),
        )
        queues = await observe.queue_summaries(jet, limit=ROWS)
        workers = {one.name: await observe.worker_summaries(jet, one.name) for one in queues[:_WATCHED]}
        health = await observe.health_facts(jet, self._path, queues, streams)
        number, at = self._last.number + 1 if self._last else 1, clock.monotonic()
        self._lags.add(at, [LagSample(_name_of(one), one.lag) for one in consumers[:_LINES]])
        return Picture(number, at, clock.now(), streams, consumers, queues, workers, health, self._lags, self._last)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the picture of now, then changes for as long as somebody listens."""
        seen = 0
        while True:
            picture = await self.latest()
            if picture.number != seen:
                yield picture.change_event if picture.number == seen + 1 and seen else picture.whole_event
                seen = picture.number
            await self._jet.runtime.clock.sleep(self._every)
