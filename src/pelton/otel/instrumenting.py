"""Switching the tracing of an opening on and off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from pelton._version import VERSION
from pelton.api import ConfigError
from pelton.connect import Jet
from pelton.jet import Message
from pelton.jet.processing import processing
from pelton.otel.tracing import MessageTracing
from pelton.queue import ClaimedJob
from pelton.sync import Jet as SyncJet
from pelton.sync.derive import unwrap

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
    opened = checked(jet)
    tracer = trace.get_tracer(NAME, VERSION, tracer_provider)
    meter = metrics.get_meter(NAME, VERSION, meter_provider)
    # Only a cluster's pulls take round trips.
    system = "nats" if opened.backend.planning.overlapping_pulls else "pelton"
    opened.backend.tracing = MessageTracing(tracer, meter, opened.runtime.clock, system)


def uninstrument(jet: AnyJet) -> None:
    """Trace and count no more. Raises ConfigError."""
    checked(jet).backend.tracing = None


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


def checked(jet: AnyJet) -> Jet:
    """Return the opening itself. Raises ConfigError for anything else."""
    opened: Jet = unwrap(jet)
    if not isinstance(opened, Jet):
        raise ConfigError(f"{jet!r} is no open store: give what pelton.open(...) returns")
    return opened
