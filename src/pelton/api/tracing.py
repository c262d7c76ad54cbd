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
    """One attempt of a job."""

    @property
    def queue(self) -> str:
        """The name of its queue."""
        ...

    @property
    def worker(self) -> str:
        """Who runs it."""
        ...

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def job(self) -> str:
        """Its name."""
        ...

    @property
    def key(self) -> str:
        """The key that it works on, or empty."""
        ...

    @property
    def meta(self) -> Mapping[str, str]:
        """What travels with it."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt it is, from 1."""
        ...


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

    def running(self, job: TracedJob, *, is_new: bool = True) -> AbstractContextManager[None]:
        """Cover an attempt of a job, where its function runs; ``is_new`` if the program has not claimed it itself."""
        ...

    def claimed(self, jobs: Sequence[TracedJob], began: int) -> None:
        """Note what claims have taken that ``began`` at this wall time (ns); it is not empty."""
        ...

    def settling_jobs(self, jobs: Sequence[TracedJob]) -> AbstractContextManager[None]:
        """Cover the settlement of claimed jobs; there is one at least."""
        ...

    def stepping(self, name: str) -> AbstractContextManager[None]:
        """Cover a step of the job that runs here."""
        ...
