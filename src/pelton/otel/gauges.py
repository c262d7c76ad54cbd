"""How a store goes, as observable metrics: those that ``pelton metrics`` gives Prometheus, by the same names.

An exporter collects on a thread of its own, and the store belongs to an event loop: all is read there, once for each
collection.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import TracerProvider

from pelton._version import VERSION
from pelton.api import ConfigError, PeltonError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.connect import Jet
from pelton.jet import Message
from pelton.jet.message import processing
from pelton.observe.samples import CATALOGUE, LIMIT, Sample, samples
from pelton.otel.spans import MessageTracing
from pelton.queue import ClaimedJob
from pelton.runtime import running_loop
from pelton.sync import Jet as SyncJet
from pelton.sync.derive import Twin, unwrap

NAME: Final = "pelton"
AnyJet = Jet | SyncJet


def instrument(
    jet: AnyJet, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and count what this opening of a store or cluster does from now on, with all handles that came of it.

    Publishes, fetches, callbacks, acks, and the jobs of its queues, with their flows, steps and claims; the context of
    a trace travels in the headers of messages, and with jobs. ``tracer_provider`` and ``meter_provider`` are
    OpenTelemetry's global ones by default. A second call replaces the first. ``jet`` may be one of ``pelton.sync``.
    Raises ConfigError.
    """
    opened = opening_of(jet)
    tracer = trace.get_tracer(NAME, VERSION, tracer_provider)
    meter = metrics.get_meter(NAME, VERSION, meter_provider)
    # Only a cluster's pulls take round trips.
    system = "nats" if opened.backend.planning.overlapping_pulls else "pelton"
    opened.backend.tracing = MessageTracing(tracer, meter, opened.runtime.clock, system)


def uninstrument(jet: AnyJet) -> None:
    """Trace and count no more. Raises ConfigError."""
    opening_of(jet).backend.tracing = None


def process(message: Message | ClaimedJob) -> AbstractContextManager[None]:
    """Cover the processing of a fetched message, or of a claimed job: ``with pelton.otel.process(message):``.

    Spans that are made in the block belong to the trace of who has sent the ``message``, or enqueued the job. Without
    effect if its opening is not instrumented. ``consume`` and workers do it by themselves. Raises ConfigError for
    what is no message.
    """
    given: Message | ClaimedJob = unwrap(message)
    if isinstance(given, ClaimedJob):
        return nullcontext() if given.tracing is None else given.tracing.running(given, is_new=False)
    if not isinstance(given, Message):
        raise ConfigError(f"process: {message!r} is no message: give one that was fetched, or a claimed job")
    return processing(given)


def opening_of(jet: AnyJet) -> Jet:
    """Return the opening itself. Raises ConfigError for anything else."""
    opened: Jet = unwrap(jet)
    if not isinstance(opened, Jet):
        raise ConfigError(f"{jet!r} is no open store: give what pelton.open(...) returns")
    return opened


_log: Final = logging.getLogger("pelton.otel")
_PATIENCE_S: Final = 30.0
# The callbacks of one collection come one after the other.
_FRESH_S: Final = 1.0


def observe(jet: AnyJet, *, path: str = "", limit: int = LIMIT, meter_provider: MeterProvider | None = None) -> None:
    """Export gauges of streams, consumers, queues and elections; their values are read at each collection.

    ``path`` is the file of the store, whose size is exported as well; of each kind, the first ``limit`` by name are.
    One process of a store is enough. Call it where ``jet`` was opened. When the store is closed, nothing is exported
    any more. ``meter_provider`` is OpenTelemetry's global one by default. Raises ConfigError.
    """
    opened = opening_of(jet)
    meter = metrics.get_meter(NAME, VERSION, meter_provider)
    loop = jet._portal.run(asyncio.get_running_loop) if isinstance(jet, Twin) else asyncio.get_running_loop()
    reading = _Reading(opened, loop, path, limit)
    for metric in CATALOGUE.values():
        create = meter.create_observable_gauge if metric.kind == "gauge" else meter.create_observable_counter
        create(metric.name, [partial(reading.of, metric.name)], description=metric.text)


class _Reading:
    """The last samples of one opening."""

    def __init__(self, jet: Jet, loop: asyncio.AbstractEventLoop, path: str, limit: int) -> None:
        self._jet = jet
        self._loop = loop
        self._read = partial(samples, jet, path, limit)
        self._lock = threading.Lock()
        self._found: list[Sample] = []
        self._at = -_FRESH_S

    def of(self, metric: str, _: CallbackOptions) -> Iterable[Observation]:
        labels = CATALOGUE[metric].labels
        for sample in self._samples():
            if sample.metric == metric:
                yield Observation(sample.value, dict(zip(labels, sample.labels, strict=True)))

    def _samples(self) -> list[Sample]:
        with self._lock:
            now = self._jet.runtime.clock.monotonic()
            if now - self._at >= _FRESH_S and running_loop() is not self._loop:
                # On the loop itself, which cannot wait for itself, the values of the last collection are used.
                self._found = self._collect()
                self._at = self._jet.runtime.clock.monotonic()
            return self._found

    def _collect(self) -> list[Sample]:
        if self._loop.is_closed():
            return []
        try:
            return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_PATIENCE_S)
        except FINAL_ERRORS:
            # The store is closed.
            return []
        except (PeltonError, TimeoutError) as error:
            _log.warning("the metrics of a store could not be read: %s", error)
            return []
