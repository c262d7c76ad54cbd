"""The port between an opening and whoever traces it: what happens to messages and jobs, told where it happens.

A backend whose ``tracing`` is None, as it is unless a program sets it, tells nobody, which costs one look at it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pelton.api.errors import PeltonError
from pelton.api.info import PubAck
from pelton.api.message import Delivered
from pelton.api.transacting import Outgoing


class SendSpan(Protocol):
    """Messages on their way into a stream; ``messages`` are as they are to be sent, with their trace's context."""

    messages: Sequence[Outgoing]

    def stored(self, acks: Sequence[PubAck]) -> None:
        """Note that they were acknowledged."""
        ...


class EnqueueSpan(Protocol):
    """Jobs on their way into a queue; ``meta`` is to travel with each."""

    meta: Mapping[str, str]

    def stored(self, ids: Sequence[str]) -> None:
        """Note that they were stored, under these ids."""
        ...


class SettleSpan(Protocol):
    """Deliveries that are being settled."""

    def answered(self, answers: Sequence[PeltonError | None]) -> None:
        """Note which were refused."""
        ...


class TracedJob(Protocol):
    """One attempt of a job; ``enqueued_at`` in wall nanoseconds."""

    queue: str
    worker: str
    id: str
    job: str
    key: str
    meta: dict[str, str]
    attempt: int
    enqueued_at: int


class Tracing(Protocol):
    """Told of what happens to messages and jobs of one opening; what it does must not raise."""

    def sending(self, messages: Sequence[Outgoing]) -> AbstractContextManager[SendSpan]:
        """Cover a publish of one message or of many."""
        ...

    def carried(self, message: Outgoing) -> Outgoing:
        """Return a message with the context of what runs here, which is stored later."""
        ...

    def received(self, delivered: Sequence[Delivered], began: int) -> None:
        """Note what a fetch has got that ``began`` at this wall time (ns); it is not empty."""
        ...

    def handed_out(self, delivered: Delivered) -> None:
        """Note a message that a program gets from an iteration, without a fetch of its own."""
        ...

    def processing(self, delivered: Delivered, *, is_new: bool) -> AbstractContextManager[None]:
        """Cover the processing of a message; ``is_new`` if it was not fetched by the program itself."""
        ...

    def settling(self, kind: str, delivered: Sequence[Delivered]) -> AbstractContextManager[SettleSpan]:
        """Cover an ack, nak or term of deliveries of one consumer."""
        ...

    def enqueuing(self, queue: str, jobs: Sequence[str]) -> AbstractContextManager[EnqueueSpan]:
        """Cover the enqueuing of jobs, given by their names."""
        ...

    def running(self, job: TracedJob) -> AbstractContextManager[None]:
        """Cover an attempt of a job, where its function runs."""
        ...

    def stepping(self, name: str) -> AbstractContextManager[None]:
        """Cover a step of the job that runs here."""
        ...
