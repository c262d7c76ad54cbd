"""A job claimed for manual processing: what it is and, once you have reported it, how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from pelton.api import Outgoing, PeltonError, headers
from pelton.api.admission import check_subject
from pelton.queue.define.arguments import encoded_result
from pelton.queue.model.records import AttemptRecords, Ended
from pelton.queue.model.states import NOTHING
from pelton.queue.run.core import HeldJob

if TYPE_CHECKING:
    from pelton.api.tracing import Tracing


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The job was reported as done, with this result as JSON."""

    result: msgspec.Raw


class Failed(msgspec.Struct, frozen=True):
    """The job was reported as failed, as if it had raised ``error``."""

    error: BaseException


class HandedBack(msgspec.Struct, frozen=True):
    """The job was not run: another worker gets it, and this was no attempt."""


class ClaimedJob(HeldJob):
    """A job of a batch. Report how it ended: :meth:`complete`, :meth:`fail`, :meth:`hand_back`.

    ``claims.settle`` stores that.

    ``cancelled``: somebody has cancelled it since it was taken; give up its work, and ``fail(pelton.Cancel())``.
    ``lost``: its lease was lost, another worker may have it, and what you report has no effect. ``records``,
    ``lease`` and ``ending`` are for the claims, ``tracing`` for ``pelton.otel.process``.
    """

    __slots__ = ("_emitted", "cancelled", "ending", "tracing")

    def __init__(self, records: AttemptRecords) -> None:
        super().__init__(records)
        self.ending: Completed | Failed | HandedBack | None = None
        self._emitted: list[Outgoing] | None = None
        self.cancelled: bool = False
        self.tracing: Tracing | None = None

    def __repr__(self) -> str:
        return f"<ClaimedJob {self.id} {self.job!r}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.records.id

    @property
    def job(self) -> str:
        """The job's name."""
        return self.records.envelope.job

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.records.queue

    @property
    def worker(self) -> str:
        """The name of the claims that hold it, as a worker."""
        return self.records.worker

    @property
    def meta(self) -> Mapping[str, str]:
        """What travels with it: texts by name."""
        return self.records.envelope.meta

    @property
    def key(self) -> str:
        """The key the job works on, or empty."""
        return self.records.envelope.key

    @property
    def args(self) -> bytes:
        """Its arguments: a JSON object by parameter name."""
        return bytes(self.records.envelope.args)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.records.attempt

    @property
    def last_error(self) -> str:
        """Why the previous attempt failed, or empty."""
        known = self.records.known
        return known.error if known is not None else ""

    @property
    def enqueued_at(self) -> int:
        """When it was enqueued, in wall nanoseconds."""
        return self.records.delivered.time_ns

    @property
    def token(self) -> int:
        """A number that grows with every start of a job of the same key; an outside system can refuse smaller ones."""
        return self.records.delivered.token

    @property
    def is_decided(self) -> bool:
        """Whether its end was reported."""
        return self.ending is not None

    def complete(self, result: object = None) -> None:
        """Report success; ``result`` is kept in the history. Raises JobResultError if it is not valid JSON."""
        self.complete_encoded(NOTHING if result is None else encoded_result(self.job, result))

    def complete_encoded(self, result: msgspec.Raw) -> None:
        """Report success, with a result that is already JSON."""
        self.ending = Completed(result)

    def fail(self, error: BaseException) -> None:
        """Report failure, as if its function had raised ``error``.

        The rules of the claims decide whether it is retried; RetryJob, PermanentJobError and JobCancelledError override
        them.
        """
        self.ending = Failed(error)

    def hand_back(self) -> None:
        """Report that it was not run: it is delivered again at once, to any worker, and this was no attempt."""
        self.ending = HandedBack()

    def emit(self, subject: str, data: bytes, message_headers: Mapping[str, str | Sequence[str]] | None = None) -> None:
        """Publish a message together with the completion of this job: both take effect, or neither does.

        ``message_headers`` map names to one text or to several. Raises ConfigError.
        """
        check_subject(subject)
        self.emit_encoded(subject, data, headers.encode(message_headers) if message_headers else None)

    def emit_encoded(self, subject: str, data: bytes, block: bytes | None) -> None:
        """Publish a message whose headers are already encoded."""
        if self._emitted is None:
            self._emitted = []
        message = Outgoing(subject, data, block)
        self._emitted.append(message if self.tracing is None else self.tracing.carried(message))

    def completed(self, result: msgspec.Raw, now: int) -> Ended:
        """Return the record of its completion, with what it emitted; for the claims."""
        return self.records.completed(result, self._emitted or (), now)

    def take_back(self, refused: PeltonError) -> bool:
        """Note that a message was refused; return whether it was one of the completion; for the claims."""
        was_completed = isinstance(self.ending, Completed)
        if was_completed:
            self.ending = Failed(refused)
        return was_completed
