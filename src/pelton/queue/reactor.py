"""Carrying out flows, what follows from the events of their logs, and signals, which have jobs that wait go on.

**Flows.** The stream of a queue's flows has one durable consumer, from which the reactors of all workers take what has
happened. Each message is handled to its end before it is acknowledged, and may be handled again by another reactor if
one dies:

- *told*: an attempt that ends a job of a flow tells so, with its outcome or before it. The reactor looks for the
  outcome, which alone counts, and writes it into the flow's log.
- *begin, end, cancel*: an event of a flow's log. What follows is found from this event and those before it
  (``progress.py``), by whoever looks. The jobs that become ready are enqueued, and the outcomes of nodes that never
  start are stored.

Jobs that come after no other are stored by whoever enqueues the flow: in a store file in the transaction that stores
the flow, on a cluster after it.

In a store file, what follows from a message is stored in the transaction that acknowledges it, so it happens once. On a
cluster it is published first: a job to the place of its node, which is refused while it is there, with a message id,
and not again once it has told that it ended.

**Removing what is stored of flows that have ended: after as long as the queue keeps its history.** The wall clock alone
does not tell what is old, because it may be wrong for a moment. A flow that has ended goes only if the history has no
outcome any more that is as old; parts of a flow that was never begun, whose program may be about to begin it, only if
this worker has seen them for a while by a clock that does not jump.

**Signals** (docs/decisions/0041). A signal is a message beside the steps of its job, so to send one is to publish it.
The workers of a queue take signals from one durable consumer, once they know that jobs wait for some, and have the job
delivered if it waits for this one. What is not waited for stays where it is, until the job comes to its wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import (
    AckOp,
    AckRejectedError,
    ConsumerNotFoundError,
    Delivered,
    JobNotFoundError,
    MessageTooLargeError,
    Outgoing,
    PeltonError,
    Settled,
    StreamNotFoundError,
    WrongLastSequenceError,
    parse_rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.jet import ack_of
from pelton.jet.registers import is_busy
from pelton.jet.stream import last_of, next_of
from pelton.queue.builder import FlowBegin, decode_event, decode_flow_record, is_cancel
from pelton.queue.enqueuer import announce_messages
from pelton.queue.model.limits import Order
from pelton.queue.model.naming import CALLS, CANCEL
from pelton.queue.model.states import ENDINGS, FlowPlace, NodeEnd, Outcome, decode_outcome, node_end
from pelton.queue.progress import FlowLog, FlowMessages, FlowProgress, FlowStep
from pelton.queue.run.parking import Recall
from pelton.queue.scan import unfinished_job
from pelton.queue.setup import flows_consumer, signals_consumer

if TYPE_CHECKING:
    from pelton.api import AckKind
    from pelton.jet import Consumer, Message, Stream
    from pelton.queue.job import JobLookup
    from pelton.queue.registry import QueueContext

_EVERY_S: Final = 60.0
_DAY_NS: Final = 86_400 * 10**9
_SEEN_S: Final = 600.0


class FlowCleaning:
    """Removes the flows of one queue that have ended long ago."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._last = float("-inf")
        # The last part of a flow that need not be looked at again; and since when flows are known that were not begun.
        self._part = 0
        self._unbegun: dict[str, float] = {}

    async def clean(self, flows: Stream) -> None:
        """Remove what is old, once a minute."""
        if (now := self._queue.clock.monotonic()) < self._last + _EVERY_S:
            return
        self._last = now
        await self._clean_unbegun(flows, now)
        history = await (await self._queue.jet.stream(self._queue.names.history)).info()
        if not (age := history.config.max_age.ns):
            return
        limit, seq, names = self._queue.clock.now() - age, 1, self._queue.names
        if history.state.messages:
            limit = min(limit, parse_rfc3339(history.state.first_ts) - 1)
        while True:
            stored = await next_of(flows, names.flow_state("*"), seq)
            if stored is None or limit < stored.time_ns <= self._queue.clock.now():
                return
            seq, flow = stored.seq + 1, names.flow_of(stored.subject)
            if stored.time_ns > limit:
                # Stored while the clock was ahead: others may be old all the same.
                continue
            last = await flows.get_last_message(names.flow_state(flow))
            if last.seq == stored.seq and decode_flow_record(last.data).state != "running":
                await flows.purge(filter=names.all_of_flow(flow))

    async def _clean_unbegun(self, flows: Stream, now: float) -> None:
        """Remove the parts of flows that nobody has begun within a day: their program died as it enqueued them."""
        limit, names, seq = self._queue.clock.now() - _DAY_NS, self._queue.names, self._part
        known, self._unbegun = self._unbegun, {}
        while True:
            stored = await next_of(flows, names.flow_part("*", "*"), seq + 1)
            if stored is None or stored.time_ns > limit:
                return
            seq, flow = stored.seq, names.flow_of(stored.subject)
            if await last_of(flows, names.flow_begin(flow)) is None:
                since = known.get(flow, now)
                if now >= since + _SEEN_S:
                    await flows.purge(filter=names.all_of_flow(flow))
                else:
                    self._unbegun[flow] = since
            if not self._unbegun:
                self._part = seq


_log: Final = logging.getLogger("pelton.queue")
_BATCH: Final = 256
_PULL_S: Final = 30.0
_AT_ONCE: Final = 64
_TURNS: Final = 3
_LATE_NS: Final = 10 * 10**9
# Deliveries, over a minute and a half.
_GONE_AFTER: Final = 20
_SOON_S: Final = 0.05
_LATER_S: Final = 5.0
_UNREADABLE_S: Final = 60.0
_TO_FINISH_S: Final = 10.0


class Handled(msgspec.Struct, frozen=True):
    """What follows from one message: the messages to store, in order, and how it is acknowledged.

    The first ``jobs`` of the messages are jobs. ``may_be_stored``: some may have been, by whoever enqueued the flow.
    """

    delivered: Delivered
    ack: AckOp
    messages: Sequence[Outgoing] = ()
    jobs: int = 0
    may_be_stored: bool = False


class Reactor:
    """Carries out what the messages of one stream of a queue ask for, beside one worker.

    It is idle until it is noticed that there are any. ``acted`` is called whenever something was done.
    """

    # What it carries out, for names of tasks.
    what: str

    def __init__(self, queue: QueueContext, stream: str, acted: Callable[[], None]) -> None:
        self._queue = queue
        self._stream_name = stream
        self._acted = acted
        self._outage = queue.outage()
        self._noticed = asyncio.Event()
        self._is_busy = False
        self._stream: Stream | None = None
        self._consumer: Consumer | None = None

    def notice(self) -> None:
        """Begin: the queue has such messages."""
        self._noticed.set()

    async def follow(self) -> None:
        """Carry them out for ever, once there are any."""
        while True:
            await self._noticed.wait()
            if messages := await self._fetch():
                self._is_busy = True
                found = [message.delivered for message in messages]
                handling = self._queue.runtime.spawn(self._handle_all(found), f"pelton {self._queue.name} {self.what}")
                try:
                    await asyncio.shield(handling)
                except asyncio.CancelledError:
                    # Otherwise others take it over only when its ack wait is over.
                    await asyncio.wait({handling}, timeout=_TO_FINISH_S)
                    handling.cancel()
                    raise

    async def _fetch(self) -> list[Message]:
        try:
            stream, consumer = await self._open()
            await self._before_fetch(stream)
            messages = await consumer.fetch(_BATCH, timeout=_PULL_S)
        except StreamNotFoundError:
            # The queue was deleted, or what it had of these, until there is another one.
            self._noticed.clear()
            return self._lose_consumer()
        except ConsumerNotFoundError:
            return self._lose_consumer()
        except PeltonError as error:
            await self._outage.wait(error)
            return self._lose_consumer()
        self._outage.end()
        return messages

    def _lose_consumer(self) -> list[Message]:
        self._consumer = None
        return []

    async def is_idle(self) -> bool:
        """Whether nothing can be done now: it may be later."""
        if not self._noticed.is_set():
            return True
        if self._consumer is None or (info := await self._consumer.info()).num_pending:
            return False
        if not await self._queue.backend.has_seen_all(info):
            return False
        # What was just delivered is known in the next turns of the loop.
        for _ in range(_TURNS):
            await self._queue.clock.sleep(0)
        return not self._is_busy

    async def quiet(self) -> int | None:
        """Return None while something is to be done, else a number that grows with all that happens."""
        if not self._noticed.is_set():
            return 0
        if self._consumer is None or self._stream is None:
            return None
        info, state = await self._consumer.info(), (await self._stream.info()).state
        if info.num_pending or info.num_ack_pending or self._is_busy:
            return None
        return state.last_seq if await self._queue.backend.has_seen_all(info) else None

    async def _open(self) -> tuple[Stream, Consumer]:
        if self._stream is None or self._consumer is None:
            self._stream = await self._queue.jet.stream(self._stream_name)
            self._consumer = await self._make_consumer(self._stream)
            self._acted()
        return self._stream, self._consumer

    async def _handle_all(self, found: Sequence[Delivered]) -> None:
        try:
            await self._handle(found)
        except (StreamNotFoundError, ConsumerNotFoundError):
            self._consumer = None
        finally:
            self._is_busy = False
            self._acted()

    async def _make_consumer(self, stream: Stream) -> Consumer:
        """Return the durable consumer of these messages, made if it is missing."""
        raise NotImplementedError

    async def _before_fetch(self, stream: Stream) -> None:
        """Do what is to be done now and then."""

    async def _handle(self, found: Sequence[Delivered]) -> None:
        """Carry out some messages, and acknowledge them."""
        raise NotImplementedError

    async def _ack(self, ack: AckOp) -> None:
        # Refused, if another reactor has it by now.
        await self._queue.backend.ack(self._stream_name, self._consumer_name, [ack])

    @property
    def _consumer_name(self) -> str:
        assert self._consumer is not None
        return self._consumer.name

    def _put_up_with(self, error: PeltonError) -> None:
        """Raise an error that does not pass; after others, what was not acknowledged is delivered again."""
        if not is_busy(error):
            raise error
        _log.warning("%s of queue %r can't go on yet: %s", self.what, self._queue.name, error)


class FlowReactor(Reactor):
    """Carries out the flows of a queue."""

    what = "flows"

    def __init__(self, queue: QueueContext, jobs: JobLookup, acted: Callable[[], None]) -> None:
        super().__init__(queue, queue.names.flows, acted)
        self._jobs = jobs
        self._log = FlowLog(queue)
        self._messages = FlowMessages(queue)
        self._cleaning = FlowCleaning(queue)
        self._history: Stream | None = None

    async def _make_consumer(self, stream: Stream) -> Consumer:
        self._history = await self._queue.jet.stream(self._queue.names.history)
        return await flows_consumer(stream, self._queue.names, self._queue.lease)

    async def _before_fetch(self, stream: Stream) -> None:
        await self._cleaning.clean(stream)

    # --- handling

    async def _handle(self, found: Sequence[Delivered]) -> None:
        handled = list[Handled]()
        for delivered in found:
            if handled and is_cancel(delivered.data):
                # What it cancels has to be stored.
                await self._carry_out(handled)
                handled = []
            handled.append(await self._look_at(delivered))
        await self._carry_out(handled)

    async def _look_at(self, delivered: Delivered) -> Handled:
        """Return what follows from a message."""
        assert self._stream is not None, "it was delivered from it"
        try:
            event = decode_event(delivered.data)
            if isinstance(event, NodeEnd) and self._queue.names.is_flow_told(delivered.subject):
                return await self._verify(self._stream, delivered, event)
            applied = await self._log.step(self._stream, delivered, event)
            if applied is None:
                # What is left of a flow that was removed.
                await self._stream.purge(filter=self._queue.names.all_of_flow(self._flow_of(delivered)))
                return Handled(delivered, ack_of(delivered, "ack"))
            if not isinstance(event, FlowBegin):
                return await self._follows(delivered, *applied)
            if event.has_jobs:
                applied = applied._replace(step=applied.step._replace(enqueue=()))
            follows = await self._follows(delivered, *applied)
            return msgspec.structs.replace(follows, may_be_stored=not event.has_jobs)
        except UNREADABLE as error:
            # Of a newer version, perhaps: another worker can read it.
            _log.warning("queue %r has a flow that this worker can't read: %s", self._queue.name, error)
            return _later(delivered, _UNREADABLE_S)
        except PeltonError as error:
            if not is_busy(error):
                raise
            _log.warning("a flow of queue %r can't go on yet: %s", self._queue.name, error)
            return _later(delivered)

    def _flow_of(self, delivered: Delivered) -> str:
        return self._queue.names.flow_of(delivered.subject)

    async def _verify(self, stream: Stream, delivered: Delivered, told: NodeEnd) -> Handled:
        """Return the event of a job that has told that it ends, if it has."""
        outcome = await self._outcome_of(told)
        if outcome is None:
            try:
                await self._jobs.get(told.id)
            except JobNotFoundError:
                # Its outcome was removed from the history before anybody looked: what it has told counts.
                pass
            else:
                # The attempt is about to store its outcome, or it was lost, and another one will tell.
                return _later(delivered)
        flow = self._flow_of(delivered)
        ended = told if outcome is None else node_end(FlowPlace(flow, told.node, wanted=told.wanted), outcome)
        event = self._messages.event(flow, ended)
        return Handled(delivered, ack_of(delivered, "ack"), (event,))

    async def _outcome_of(self, told: NodeEnd) -> Outcome | None:
        assert self._history is not None, "it was opened"
        # One subject after the other is quicker than a wildcard, and the first is mostly right.
        for ending in sorted(ENDINGS, key=lambda ending: ending != told.state):
            stored = await last_of(self._history, self._queue.names.ending_subject(ending, told.id))
            if stored is not None:
                return decode_outcome(stored.data)
        return None

    async def _follows(self, delivered: Delivered, progress: FlowProgress, step: FlowStep) -> Handled:
        flow = self._flow_of(delivered)
        gone = await self._not_withdrawn(delivered, step.withdraw, progress.cancelled or "")
        if gone and delivered.num_delivered < _GONE_AFTER:
            # Another worker is about to store them.
            return _later(delivered)
        enqueue = step.enqueue
        # If the clock is behind, nobody knows.
        is_late = abs(self._queue.clock.now() - delivered.time_ns) > _LATE_NS
        if delivered.num_delivered > 1 or is_late:
            # Whoever had this before may have enqueued some, and they may have ended since. Also if it was another
            # consumer, which was removed.
            told = await asyncio.gather(*(self._has_told(flow, progress.job_ids[node]) for node in enqueue))
            enqueue = [node for node, is_told in zip(enqueue, told, strict=True) if not is_told]
        if any(progress.specs[node].options.is_timed for node in enqueue):
            await self._queue.time.refresh(self._queue.names.jobs)
        messages = [self._messages.job(flow, progress, node) for node in enqueue]
        messages += [self._messages.to_cancelled(progress, node) for node in step.cancelled]
        messages += [self._messages.removed_event(flow, progress, job_id) for job_id in gone]
        if step.ends is not None:
            messages.append(self._messages.state(flow, delivered.seq, progress, step.ends))
        return Handled(delivered, ack_of(delivered, "ack"), messages, len(enqueue))

    async def _not_withdrawn(self, delivered: Delivered, job_ids: Sequence[str], reason: str) -> list[str]:
        """Cancel jobs; return those that are not stored."""
        gone, flow = list[str](), self._flow_of(delivered)
        for start in range(0, len(job_ids), _AT_ONCE):
            if start:
                await self._ack(ack_of(delivered, "progress"))
            some = job_ids[start : start + _AT_ONCE]
            withdrawn = await asyncio.gather(*(self._is_withdrawn(flow, job_id, reason) for job_id in some))
            gone += [job_id for job_id, is_withdrawn in zip(some, withdrawn, strict=True) if not is_withdrawn]
        return gone

    async def _is_withdrawn(self, flow: str, job_id: str, reason: str) -> bool:
        try:
            await self._jobs.cancel(job_id, reason=why_withdrawn(reason))
        except JobNotFoundError:
            return await self._has_told(flow, job_id)
        return True

    async def _has_told(self, flow: str, job_id: str) -> bool:
        assert self._stream is not None
        return await last_of(self._stream, self._queue.names.flow_told(flow, job_id)) is not None

    # --- carrying out

    async def _carry_out(self, handled: Sequence[Handled]) -> None:
        # Together they would mostly be refused.
        await asyncio.gather(*(self._one_by_one(one) for one in handled if one.may_be_stored))
        handled = [one for one in handled if not one.may_be_stored]
        settled = [Settled(one.messages, one.ack) for one in handled]
        try:
            answers = await self._queue.backend.settle_many(settled, self._queue.names.flows, self._consumer_name)
        except PeltonError as error:
            self._put_up_with(error)
            return
        for one, refused in zip(handled, answers, strict=True):
            if isinstance(refused, (WrongLastSequenceError, MessageTooLargeError)):
                await self._one_by_one(one)
            elif refused is None:
                await announce_messages(self._queue, one.messages[: one.jobs])
            elif not isinstance(refused, AckRejectedError):
                self._put_up_with(refused)

    async def _one_by_one(self, one: Handled) -> None:
        """Publish what follows, each message on its own, and acknowledge after that; safe to repeat."""
        try:
            await self._publish_each(one)
        except PeltonError as error:
            self._put_up_with(error)

    async def _publish_each(self, one: Handled) -> None:
        are_new: list[bool] = []
        # The last one says that all others are stored.
        for start in range(0, len(one.messages), _AT_ONCE):
            if start:
                await self._ack(ack_of(one.delivered, "progress"))
            are_new += await asyncio.gather(*map(self._publish, one.messages[:-1][start : start + _AT_ONCE]))
        for message in one.messages[-1:]:
            are_new.append(await self._publish(message))
        jobs = zip(one.messages[: one.jobs], are_new, strict=False)
        await announce_messages(self._queue, [message for message, is_new in jobs if is_new])
        await self._ack(one.ack)

    async def _publish(self, message: Outgoing) -> bool:
        """Publish a message; return False if it, or one in its place, was there."""
        try:
            stored = await self._queue.backend.publish(message.subject, message.data, message.headers)
        except WrongLastSequenceError:
            # It is there: another reactor was interrupted before it could acknowledge, or whoever enqueued the flow.
            return False
        except MessageTooLargeError as error:
            # The job of a node: all other messages are small.
            why = f"its arguments are too large together: {error}"
            for instead in self._messages.to_failed(message.data, why):
                await self._publish(instead)
            return False
        return not stored.duplicate


def why_withdrawn(reason: str) -> str:
    return f"its flow was cancelled: {reason}" if reason else "its flow was cancelled"


def _later(delivered: Delivered, delay: float | None = None) -> Handled:
    """Return that a message is to be delivered again, each time after a longer while."""
    if delay is None:
        delay = min(_SOON_S * 2 ** min(delivered.num_delivered, 10), _LATER_S)
    return Handled(delivered, ack_of(delivered, "nak", delay_ns=int(delay * 1e9)))


# --- signals: what has a job that waits for one go on

_SIGNAL_AGAIN_S: Final = 0.02
_SIGNAL_LATER_S: Final = 2.0
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
        delay = 0.0 if is_done else min(_SIGNAL_AGAIN_S * 2 ** min(signals[-1].num_delivered, 10), _SIGNAL_LATER_S)
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
