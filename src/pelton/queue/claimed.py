"""A job that was taken by hand: what it is, and how it ended, once that is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from pelton.api import Outgoing, headers
from pelton.api.admission import check_subject
from pelton.queue.codec import NOTHING, encoded_result
from pelton.queue.leases import DeliveryHold
from pelton.queue.records import AttemptRecords, Ended

if TYPE_CHECKING:
    from pelton.queue.leases import SharedLease


class Completed(msgspec.Struct, frozen=True, gc=False):
    """A job was said to be done, with this result as JSON."""

    result: msgspec.Raw


class Failed(msgspec.Struct, frozen=True):
    """A job was said to have failed as if it had raised ``error``."""

    error: BaseException


class ClaimedJob:
    """A job of a batch. Say how it ended with :meth:`complete` or :meth:`fail`; ``claims.settle`` writes that down.

    ``lost``: its lease was lost, another worker may have it, and what is said of it has no effect. ``records``,
    ``lease`` and ``ending`` are for the claims.
    """

    __slots__ = ("_emitted", "ending", "lease", "lost", "records")

    def __init__(self, records: AttemptRecords) -> None:
        self.records = records
        self.lease: SharedLease[ClaimedJob] | None = None
        self.ending: Completed | Failed | None = None
        self.lost = False
        self._emitted: list[Outgoing] | None = None

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
    def key(self) -> str:
        """What it works on, or empty."""
        return self.records.envelope.key

    @property
    def args(self) -> bytes:
        """Its arguments: JSON, an object by parameter name."""
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
        """A number that grows with every start of a job of the same key; an outside system may refuse smaller ones."""
        return self.records.delivered.token

    @property
    def is_decided(self) -> bool:
        """Whether it was said how it ended."""
        return self.ending is not None

    def complete(self, result: object = None) -> None:
        """Say that it is done; ``result`` is kept in the history. Raises JobResultError for one that is no JSON."""
        self.complete_encoded(NOTHING if result is None else encoded_result(self.job, result))

    def complete_encoded(self, result: msgspec.Raw) -> None:
        """Say that it is done, with a result that is JSON already."""
        self.ending = Completed(result)

    def fail(self, error: BaseException) -> None:
        """Say that it failed, as if its function had raised ``error``.

        The rules of the claims say whether it is tried again; RetryJob, PermanentJobError, JobCancelledError say more.
        """
        self.ending = Failed(error)

    def emit(self, subject: str, data: bytes, message_headers: Mapping[str, str | Sequence[str]] | None = None) -> None:
        """Publish a message together with the completion of this job: both take effect, or neither does.

        Raises ConfigError.
        """
        check_subject(subject)
        self.emit_encoded(subject, data, headers.encode(message_headers) if message_headers else None)

    def emit_encoded(self, subject: str, data: bytes, block: bytes | None) -> None:
        """Publish a message whose headers are encoded already."""
        if self._emitted is None:
            self._emitted = []
        self._emitted.append(Outgoing(subject, data, block))

    def completed(self, result: msgspec.Raw, now: int) -> Ended:
        """Return how it completes, with what it emitted; for the claims."""
        return self.records.completed(result, self._emitted or (), now)

    @property
    def hold(self) -> DeliveryHold:
        """What it holds; for the claims."""
        return DeliveryHold(self.records.delivered, self._lose)

    def _lose(self, reason: str) -> None:
        # One that was let go of meanwhile is settled.
        self.lost = self.lost or self.lease is not None
