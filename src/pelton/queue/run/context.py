"""What a running job can ask and do: its :class:`JobContext`, passed to the parameter annotated with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pelton.api import ConfigError, Delivered, JobCancelledError, LeaseLostError, Outgoing, headers
from pelton.api.admission import check_subject
from pelton.api.times import Seconds
from pelton.queue.define.arguments import RunContext
from pelton.queue.model.states import Envelope

if TYPE_CHECKING:
    from pelton.queue.enqueue.transaction import JobTransaction


class JobContext(RunContext):
    """One attempt of a job. Safe to use from the job's thread.

    ``token`` grows with every start of a job of the same key, or of the same job: an outside system that remembers the
    largest token it has seen can refuse a worker that was replaced. ``attempt`` counts from 1; ``last_error`` is why
    the previous attempt failed; ``meta`` is what the program has attached to the call.
    """

    __slots__ = (
        "_cancelled", "_emitted", "_lost", "_open_transaction", "_stopping", "attempt", "enqueued_at", "id", "job",
        "key", "last_error", "meta", "queue", "token", "worker",
    )  # fmt: skip

    def __init__(
        self,
        queue: str,
        worker: str,
        delivered: Delivered,
        envelope: Envelope,
        attempt: int,
        last_error: str,
        open_transaction: Callable[[JobContext, Seconds], JobTransaction] | None,
    ) -> None:
        self.queue = queue
        self.worker = worker
        self.id = envelope.id or str(delivered.seq)
        self.job = envelope.job
        self.key = envelope.key
        self.meta = envelope.meta
        self.attempt = attempt
        self.last_error = last_error
        self.enqueued_at = delivered.time_ns
        self.token = delivered.token
        self._emitted: list[Outgoing] = []
        self._lost = ""
        self._stopping = False
        self._cancelled: JobCancelledError | None = None
        # Only for jobs that run on the worker's event loop.
        self._open_transaction = open_transaction

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: another worker may have the job, and this result will be refused."""
        return bool(self._lost)

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the job: on a thread, return or call :meth:`check`."""
        return self._cancelled is not None

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: finish soon, or the job is handed back."""
        return self._stopping

    def check(self) -> None:
        """Raise LeaseLostError if the lease was lost, and JobCancelledError if the job was cancelled.

        Call it regularly in long work on a thread.
        """
        if self._lost:
            raise LeaseLostError(self.id, self.key, self._lost)
        if self._cancelled is not None:
            raise self._cancelled

    def emit(self, subject: str, data: bytes, message_headers: Mapping[str, str | Sequence[str]] | None = None) -> None:
        """Publish a message together with the completion of this job: both take effect, or neither does.

        Raises ConfigError.
        """
        if not isinstance(subject, str) or not isinstance(data, (bytes, bytearray, memoryview)):
            raise ConfigError(
                f"job {self.id}: emit takes a subject (str) and data (bytes), not {subject!r}, {data!r:.40}"
            )
        check_subject(subject)
        block = headers.encode(message_headers) if message_headers else None
        self._emitted.append(Outgoing(subject, bytes(data), block))

    def transaction(self, *, timeout: Seconds = 1.0) -> JobTransaction:
        """Return a transaction that completes this job: ``async with ctx.transaction() as tx``.

        When its block is left, the job has ended together with everything done in the block. If the block raises or the
        lease was lost (LeaseLostError), nothing has happened. ``tx.result`` is the job's result; what the function
        returns after the block is not kept. Like ``jet.transaction``, for async jobs of an embedded store. Raises
        ConfigError.
        """
        if self._open_transaction is None:
            raise ConfigError(f"job {self.job!r}: transaction() needs an async function; this one runs on a thread")
        return self._open_transaction(self, timeout)

    def emitted(self) -> list[Outgoing]:
        """Return what is to be published with the completion."""
        return self._emitted

    def lose(self, reason: str) -> None:
        """Note that the lease was lost; for the worker."""
        self._lost = reason

    def cancel(self, cancelled: JobCancelledError) -> None:
        """Note that the job was cancelled; for the worker."""
        self._cancelled = cancelled

    def stop(self) -> None:
        """Note that the worker is stopping; for the worker."""
        self._stopping = True
