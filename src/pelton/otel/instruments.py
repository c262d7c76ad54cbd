"""The metrics of what a program sends, receives and processes, by the conventions for messaging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry.metrics import Meter

from pelton.otel import words

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Of bounded number: subjects, keys and ids are in spans, and not in metrics.
_LABELS: Final = frozenset(
    (
        words.SYSTEM,
        words.OPERATION_NAME,
        words.OPERATION_TYPE,
        words.DESTINATION,
        words.CONSUMER_GROUP,
        words.JOB_NAME,
        words.ERROR_TYPE,
    )
)
Attributes = Mapping[str, str | bool | int | float]


class MessagingInstruments:
    """Counters and histograms of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages and jobs that were to be stored"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages and jobs that were delivered to the program"
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Time of a publish, enqueue, fetch or settlement",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Time that the program takes for a message, or for an attempt of a job",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def sent(self, count: int, attributes: Attributes) -> None:
        """Count messages that were sent, or were refused."""
        self._sent.add(count, _labels(attributes))

    def consumed(self, count: int, attributes: Attributes) -> None:
        """Count messages that the program has got."""
        self._consumed.add(count, _labels(attributes))

    def operation(self, seconds: float, attributes: Attributes) -> None:
        """Note how long a call has taken."""
        self._operation.record(seconds, _labels(attributes))

    def processed(self, seconds: float, attributes: Attributes) -> None:
        """Note how long the program has taken."""
        self._process.record(seconds, _labels(attributes))


def _labels(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if name in _LABELS}
