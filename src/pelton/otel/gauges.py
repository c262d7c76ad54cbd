"""How a store goes, as observable metrics: those that ``pelton metrics`` gives Prometheus, by the same names.

An exporter collects on a thread of its own, and the store belongs to an event loop: all is read there, once for each
collection.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from functools import partial
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from pelton._version import VERSION
from pelton.api import PeltonError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.connect import Jet
from pelton.observe.catalogue import CATALOGUE
from pelton.observe.samples import LIMIT, Sample, samples
from pelton.otel.instrumenting import NAME, AnyJet, checked
from pelton.runtime import running_loop
from pelton.sync.derive import Twin

_log: Final = logging.getLogger("pelton.otel")
_PATIENCE_S: Final = 30.0
# The callbacks of one collection come one after the other.
_FRESH_S: Final = 1.0


def observe(jet: AnyJet, *, path: str = "", limit: int = LIMIT, meter_provider: MeterProvider | None = None) -> None:
    """Export how the store or cluster goes: streams, consumers, queues, elections, each collection anew.

    ``path`` is the file of the store, whose size is told, too; of each kind the first ``limit`` by name are told of.
    One process of a store is enough. Call it where ``jet`` was opened. When the store is closed, nothing is exported
    any more. ``meter_provider`` is OpenTelemetry's global one by default. Raises ConfigError.
    """
    opened = checked(jet)
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
        """Return the values of one metric."""
        labels = CATALOGUE[metric].labels
        for sample in self._samples():
            if sample.metric == metric:
                yield Observation(sample.value, dict(zip(labels, sample.labels, strict=True)))

    def _samples(self) -> list[Sample]:
        with self._lock:
            now = self._jet.runtime.clock.monotonic()
            if now - self._at >= _FRESH_S and running_loop() is not self._loop:
                # On the loop itself, which cannot wait for itself, those of the last collection have to do.
                self._found = self._collected()
                self._at = self._jet.runtime.clock.monotonic()
            return self._found

    def _collected(self) -> list[Sample]:
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
