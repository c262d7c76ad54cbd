"""What an opening does, as spans and metrics.

Design: by the conventions for messaging, the span of a publish or an enqueue is what messages carry as their context;
the span of a process is its child, and links to it, so that all attempts of a job are one trace with what has enqueued
it. A fetch belongs to the program that fetches, and links to the senders. The subjects and streams of Pelton's own,
which begin with ``$``, are not traced: those of buckets, locks and elections, and what queues store beside jobs.

**The names of OpenTelemetry's semantic conventions for messaging, and our own beside them.** Ours begin with
``pelton.``. Payloads, arguments, results and headers are never attributes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from pelton.api import (
    Cancel,
    Continue,
    Delivered,
    Discard,
    JobCancelledError,
    Outgoing,
    PeltonError,
    PubAck,
    RetryJob,
    Snooze,
    headers,
)
from pelton.api.tracing import EnqueueSpan, SendSpan, SettleSpan, TracedJob
from pelton.runtime import Clock

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

SUBJECT: Final = "pelton.subject"
DELIVERY: Final = "pelton.delivery"
JOB_NAME: Final = "pelton.job.name"
JOB_KEY: Final = "pelton.job.key"
JOB_ATTEMPT: Final = "pelton.job.attempt"
JOB_INTERRUPTED: Final = "pelton.job.interrupted"
STEP: Final = "pelton.step"


_HAS_CONTEXT: Final = "traceparent"


def with_current_context(message: Outgoing) -> Outgoing:
    """Return a message with the context that is current here, unless the program has given it one."""
    block = message.headers
    if block is not None and headers.first(block, _HAS_CONTEXT) is not None:
        return message
    for name, value in current().items():
        block = headers.with_value(block, name, value)
    return msgspec.structs.replace(message, headers=block)


def current() -> dict[str, str]:
    """Return the context that is current here, as texts by name, in the form of the program's propagators."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: value for name, value in carrier.items() if value.isprintable()}


def context_of_block(block: bytes | None) -> Context | None:
    """Return the context in a message's headers, or None."""
    if block is None:
        return None
    carrier = {name: value for name in propagate.get_global_textmap().fields if (value := headers.first(block, name))}
    return context_of(carrier)


def context_of(carrier: Mapping[str, str]) -> Context | None:
    """Return the context that texts by name hold, or None."""
    if not carrier:
        return None
    found = propagate.extract(carrier)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def link_to(context: Context | None) -> list[Link]:
    return [] if context is None else [Link(trace.get_current_span(context).get_span_context())]


def links_of(delivered: Sequence[Delivered]) -> list[Link]:
    """Return links to those who have sent these messages."""
    return [link for one in delivered for link in link_to(context_of_block(one.headers))]


# --- the metrics of what a program sends, receives and processes, by the conventions for messaging

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Of bounded number: subjects, keys and ids are in spans, and not in metrics.
_LABELS: Final = frozenset((SYSTEM, OPERATION_NAME, OPERATION_TYPE, DESTINATION, CONSUMER_GROUP, JOB_NAME, ERROR_TYPE))
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

    def count_sent(self, count: int, attributes: Attributes) -> None:
        self._sent.add(count, _labels(attributes))

    def count_received(self, count: int, attributes: Attributes) -> None:
        """Count messages that the program has got."""
        self._consumed.add(count, _labels(attributes))

    def operation(self, seconds: float, attributes: Attributes) -> None:
        """Note how long a call has taken."""
        self._operation.record(seconds, _labels(attributes))

    def record_processing(self, seconds: float, attributes: Attributes) -> None:
        """Note how long the program has taken."""
        self._process.record(seconds, _labels(attributes))


def _labels(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if name in _LABELS}


# What a job raises to say what is to become of it has not gone wrong.
_DECISIONS: Final = (Cancel, Continue, Discard, RetryJob, Snooze, JobCancelledError)
_Values = dict[str, str | bool | int | float]


class OpenSend:
    """A publish that is under way; ``messages`` carry its context."""

    def __init__(self, span: Span, values: _Values, messages: Sequence[Outgoing]) -> None:
        self._span = span
        self._values = values
        self.messages: Sequence[Outgoing] = [with_current_context(message) for message in messages]

    def on_stored(self, acks: Sequence[PubAck]) -> None:
        streams = {ack.stream for ack in acks}
        if len(streams) == 1:
            [stream] = streams
            self._values[DESTINATION] = stream
            self._span.update_name(f"publish {stream}")
        if len(acks) == 1:
            self._values[MESSAGE_ID] = str(acks[0].seq)


class OpenEnqueue:
    """Jobs on their way into a queue; they carry ``meta``."""

    def __init__(self, values: _Values) -> None:
        self._values = values
        self.meta: Mapping[str, str] = current()

    def on_stored(self, ids: Sequence[str]) -> None:
        """Note the id of a single job."""
        if len(ids) == 1:
            self._values[MESSAGE_ID] = ids[0]


class OpenSettle:
    """A settlement that is under way."""

    def __init__(self, span: Span, values: _Values) -> None:
        self._span = span
        self._values = values

    def on_answers(self, answers: Sequence[PeltonError | None]) -> None:
        """Note that some were refused: they are errors that are returned, and not raised."""
        refused = next(filter(None, answers), None)
        if refused is not None:
            self._values[ERROR_TYPE] = type(refused).__name__
            self._span.set_status(Status(StatusCode.ERROR, str(refused)))


class _Unsent:
    """Messages that are not traced."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages: Sequence[Outgoing] = messages

    def on_stored(self, acks: Sequence[PubAck]) -> None:
        """Do nothing."""


class _Unsettled:
    """Deliveries that are not traced."""

    def on_answers(self, answers: Sequence[PeltonError | None]) -> None:
        """Do nothing."""


class MessageTracing:
    """Makes spans with ``tracer`` and metrics with ``meter``, for an opening of ``system``."""

    def __init__(self, tracer: Tracer, meter: Meter, clock: Clock, system: str) -> None:
        self._tracer = tracer
        self._metrics = MessagingInstruments(meter)
        self._clock = clock
        self._system = system

    # --- messages

    def sending(self, messages: Sequence[Outgoing]) -> AbstractContextManager[SendSpan]:
        if not messages or messages[0].subject.startswith("$"):
            return nullcontext(_Unsent(messages))
        return self._sending(messages)

    @contextmanager
    def _sending(self, messages: Sequence[Outgoing]) -> Iterator[SendSpan]:
        values = self._values("publish", "send")
        if len(messages) == 1:
            values[SUBJECT] = messages[0].subject
        else:
            values[BATCH_COUNT] = len(messages)
        # A context that the program has given stays, and is linked to.
        given = [link for one in messages for link in link_to(context_of_block(one.headers))]
        try:
            with self._operation("publish", SpanKind.PRODUCER, values, links=given) as span:
                yield OpenSend(span, values, messages)
        finally:
            self._metrics.count_sent(len(messages), values)

    def with_context(self, message: Outgoing) -> Outgoing:
        return with_current_context(message)

    def on_received(self, delivered: Sequence[Delivered], began: int) -> None:
        if _is_own(delivered[0]):
            return
        values = self._of_deliveries("receive", "receive", delivered)
        name = f"receive {delivered[0].stream}"
        links = links_of(delivered)
        now = self._clock.now()
        self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=values, links=links, start_time=began).end(now)
        self._metrics.count_received(len(delivered), values)
        self._metrics.operation(max(now - began, 0) / 1e9, values)

    def handed_out(self, delivered: Delivered) -> None:
        if not _is_own(delivered):
            self._metrics.count_received(1, self._of_deliveries("receive", "receive", (delivered,)))

    def processing(self, delivered: Delivered, *, is_new: bool) -> AbstractContextManager[None]:
        return nullcontext() if _is_own(delivered) else self._processing(delivered, is_new=is_new)

    @contextmanager
    def _processing(self, delivered: Delivered, *, is_new: bool) -> Iterator[None]:
        values = self._of_deliveries("process", "process", (delivered,))
        if is_new:
            self._metrics.count_received(1, values)
        context = context_of_block(delivered.headers)
        with self._process(f"process {delivered.stream}", values, context):
            yield

    def settling(self, kind: str, delivered: Sequence[Delivered]) -> AbstractContextManager[SettleSpan]:
        return nullcontext(_Unsettled()) if _is_own(delivered[0]) else self._settling(kind, delivered)

    @contextmanager
    def _settling(self, kind: str, delivered: Sequence[Delivered]) -> Iterator[SettleSpan]:
        values = self._of_deliveries(kind, "settle", delivered)
        name, links = f"{kind} {delivered[0].stream}", links_of(delivered)
        with self._operation(name, SpanKind.CLIENT, values, links=links) as span:
            yield OpenSettle(span, values)

    # --- jobs

    @contextmanager
    def enqueuing(self, queue: str, jobs: Sequence[str]) -> Iterator[EnqueueSpan]:
        values = self._values("enqueue", "send", queue)
        kinds = set(jobs)
        name = f"enqueue {queue}"
        if len(kinds) == 1:
            values[JOB_NAME] = jobs[0]
            name = f"{name}/{jobs[0]}"
        if len(jobs) > 1:
            values[BATCH_COUNT] = len(jobs)
        try:
            with self._operation(name, SpanKind.PRODUCER, values):
                yield OpenEnqueue(values)
        finally:
            self._metrics.count_sent(len(jobs), values)

    def on_claimed(self, jobs: Sequence[TracedJob], began: int) -> None:
        values, now = self._of_jobs("receive", "receive", jobs), self._clock.now()
        name, links = f"receive {jobs[0].queue}", _links_of_jobs(jobs)
        self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=values, links=links, start_time=began).end(now)
        self._metrics.count_received(len(jobs), values)
        self._metrics.operation(max(now - began, 0) / 1e9, values)

    @contextmanager
    def settling_jobs(self, jobs: Sequence[TracedJob]) -> Iterator[None]:
        values = self._of_jobs("settle", "settle", jobs)
        with self._operation(f"settle {jobs[0].queue}", SpanKind.CLIENT, values, links=_links_of_jobs(jobs)):
            yield

    @contextmanager
    def running(self, job: TracedJob, *, is_new: bool = True) -> Iterator[None]:
        values = self._values("run", "process", job.queue)
        values |= {JOB_NAME: job.job, MESSAGE_ID: job.id, JOB_ATTEMPT: job.attempt, CLIENT_ID: job.worker}
        if job.key:
            values[JOB_KEY] = job.key
        if is_new:
            self._metrics.count_received(1, values)
        with self._process(f"run {job.queue}/{job.job}", values, context_of(job.meta)):
            yield

    @contextmanager
    def stepping(self, name: str) -> Iterator[None]:
        with self._span(f"step {name}", SpanKind.INTERNAL, {STEP: name}, None, ()):
            yield

    # --- spans

    @contextmanager
    def _operation(self, name: str, kind: SpanKind, values: _Values, *, links: Sequence[Link] = ()) -> Iterator[Span]:
        began = self._clock.monotonic()
        try:
            with self._span(name, kind, values, None, links) as span:
                yield span
        finally:
            self._metrics.operation(self._clock.monotonic() - began, values)

    @contextmanager
    def _process(self, name: str, values: _Values, context: Context | None) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            with self._span(name, SpanKind.CONSUMER, values, context, link_to(context)):
                yield
        finally:
            self._metrics.record_processing(self._clock.monotonic() - began, values)

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, values: _Values, context: Context | None, links: Sequence[Link]
    ) -> Iterator[Span]:
        """Make a span current; its attributes are ``values``, with those that are added before its end."""
        begun = frozenset(values)
        with self._tracer.start_as_current_span(
            name, context, kind, values, links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                _note(span, values, error)
                raise
            finally:
                span.set_attributes({name: value for name, value in values.items() if name not in begun})

    # --- attributes

    def _values(self, operation: str, kind: str, destination: str = "") -> _Values:
        values: _Values = {SYSTEM: self._system, OPERATION_NAME: operation, OPERATION_TYPE: kind}
        if destination:
            values[DESTINATION] = destination
        return values

    def _of_deliveries(self, operation: str, kind: str, delivered: Sequence[Delivered]) -> _Values:
        first = delivered[0]
        values = self._values(operation, kind, first.stream)
        values[CONSUMER_GROUP] = first.consumer
        if len(delivered) > 1:
            values[BATCH_COUNT] = len(delivered)
        else:
            values |= {MESSAGE_ID: str(first.seq), SUBJECT: first.subject, DELIVERY: first.num_delivered}
        return values

    def _of_jobs(self, operation: str, kind: str, jobs: Sequence[TracedJob]) -> _Values:
        values = self._values(operation, kind, jobs[0].queue)
        values[CLIENT_ID] = jobs[0].worker
        if len(jobs) > 1:
            values[BATCH_COUNT] = len(jobs)
        else:
            values |= {MESSAGE_ID: jobs[0].id, JOB_NAME: jobs[0].job}
        return values


def _links_of_jobs(jobs: Sequence[TracedJob]) -> list[Link]:
    return [link for job in jobs for link in link_to(context_of(job.meta))]


def _is_own(delivered: Delivered) -> bool:
    """Whether a message is one of Pelton's own."""
    return delivered.subject.startswith("$")


def _note(span: Span, values: _Values, error: BaseException) -> None:
    if isinstance(error, _DECISIONS):
        return
    if isinstance(error, asyncio.CancelledError):
        # Stopped, put to sleep, or cancelled from elsewhere: who has done it knows why.
        values[JOB_INTERRUPTED] = True
        return
    values[ERROR_TYPE] = type(error).__qualname__
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
