"""Signals to jobs: sent from anywhere, and what has a job that waits for one go on (docs/decisions/0041).

A signal is a message beside the steps of its job, so to send one is to publish it. The workers of a queue take signals
from one durable consumer, once they know that jobs wait for some, and have the job delivered if it waits for this one.
What is not waited for stays where it is, until the job comes to its wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pelton.api import (
    AckRejectedError,
    ConsumerNotFoundError,
    Delivered,
    PeltonError,
    WrongLastSequenceError,
)
from pelton.jet import ack_of
from pelton.jet.stream import last_of
from pelton.queue.model.limits import Order
from pelton.queue.model.naming import CALLS, CANCEL
from pelton.queue.reactor import FlowReactor, Reactor
from pelton.queue.run.parking import Recall
from pelton.queue.scan import unfinished_job
from pelton.queue.setup import signals_consumer

if TYPE_CHECKING:
    from pelton.api import AckKind
    from pelton.jet import Consumer, Stream
    from pelton.queue.job import JobLookup
    from pelton.queue.registry import QueueContext

_AT_ONCE: Final = 64
_SOON_S: Final = 0.02
_LATER_S: Final = 2.0
_COMPLETED: Final = b'"state":"completed"'


class SignalReactor(Reactor):
    """Has the jobs of a queue delivered whose signals have come."""

    what = "signals"

    def __init__(self, queue: QueueContext, acted: Callable[[], None]) -> None:
        super().__init__(queue, queue.names.running, acted)
        self._recall = Recall(queue)

    async def _make_consumer(self, stream: Stream) -> Consumer:
        return await signals_consumer(stream, self._queue.names, self._queue.lease)

    async def _handle(self, found: Sequence[Delivered]) -> None:
        by_name: dict[tuple[str, str], list[Delivered]] = {}
        for signal in found:
            by_name.setdefault(self._queue.names.signal_in(signal.subject), []).append(signal)
        several = list(by_name.items())
        for start in range(0, len(several), _AT_ONCE):
            await asyncio.gather(*(self._handle_one(*one) for one in several[start : start + _AT_ONCE]))

    async def _handle_one(self, waits: tuple[str, str], signals: Sequence[Delivered]) -> None:
        """Handle signals of one name to one job."""
        try:
            is_done = await self._carry_on(*waits, signals)
        except PeltonError as error:
            self._put_up_with(error)
            is_done = False
        delay = 0.0 if is_done else min(_SOON_S * 2 ** min(signals[-1].num_delivered, 10), _LATER_S)
        kind: AckKind = "ack" if is_done else "nak"
        acks = [ack_of(signal, kind, delay_ns=int(delay * 1e9)) for signal in signals]
        # Refused, if another reactor has them by now.
        await self._queue.backend.ack(self._stream_name, self._consumer_name, acks)

    async def _carry_on(self, job_id: str, name: str, signals: Sequence[Delivered]) -> bool:
        """Have a job delivered if it waits for these signals; return False if that can't be done yet."""
        is_urgent = name != CALLS or any(_COMPLETED not in signal.data for signal in signals)
        try:
            waited = await self._recall.by_signals(job_id, name, [one.seq for one in signals], is_urgent=is_urgent)
        except (WrongLastSequenceError, AckRejectedError, ConsumerNotFoundError):
            # It was recalled, or taken, since its record was read.
            waited = True
        if waited is False and await self._has_ended(job_id):
            running = await self._queue.jet.stream(self._queue.names.running)
            await running.purge(filter=self._queue.names.signals_of(job_id, name))
        elif waited is False and name == CANCEL:
            # It runs, and may be about to wait.
            return (
                await unfinished_job(await self._queue.jet.stream(self._queue.names.jobs), self._queue.names, job_id)
                is None
            )
        return waited is not None

    async def _has_ended(self, job_id: str) -> bool:
        history = await self._queue.jet.stream(self._queue.names.history)
        return await last_of(history, self._queue.names.outcomes_of(job_id)) is not None


class Reactors:
    """What carries out the flows of a queue, and the signals to its jobs, beside one worker."""

    def __init__(self, queue: QueueContext, jobs: JobLookup, acted: Callable[[], None]) -> None:
        self.jobs = jobs
        self._flows = FlowReactor(queue, jobs, acted)
        self._signals = SignalReactor(queue, acted)
        self.parts: tuple[Reactor, ...] = (self._flows, self._signals)

    def heed(self, order: Order) -> None:
        """Begin what an order says that the queue has."""
        if order.flows:
            self._flows.notice()
        if order.signals:
            self._signals.notice()

    async def is_idle(self) -> bool:
        """Whether nothing can be done now: it may be later."""
        return all([await part.is_idle() for part in self.parts])

    async def quiet(self) -> tuple[int, ...] | None:
        """Return None while something is to be done, else numbers that grow with all that happens."""
        found = [await part.quiet() for part in self.parts]
        return None if None in found else tuple(one for one in found if one is not None)
