"""In which state the jobs that have not ended are, from what their deliveries and their workers tell.

A delivery tells only that a job was taken, or given back. Whether it has begun, its worker has noted; that it waits in
its worker for a limit, the worker has told within the last half second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import StreamNotFoundError
from pelton.queue.backing.failed_attempts import FailedAttempts
from pelton.queue.backing.scan import messages_of_filters, orders_in, stored_messages
from pelton.queue.model.limits import number_of
from pelton.queue.model.records import accounted_for, job_id_in, state_by_cause, waiting_state, with_losses
from pelton.queue.model.states import JobState, WorkerReport
from pelton.queue.ports import ALL_LISTED

if TYPE_CHECKING:
    from pelton.api import StoredMessage, Unsettled
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.states import Attempt
    from pelton.queue.ports import Begun, BegunLookup, Underway, Unlisted

_worker: Final = msgspec.json.Decoder(WorkerReport).decode
# One that a limit holds, or that no worker knows, is due.
_NOT_DUE: Final = ("scheduled", "retrying")


class JobStates:
    """The states as of ``now`` (wall nanoseconds).

    ``parked``: the jobs that wait in a worker for a limit, by sequence, each with the number of its delivery and the
    name of the limit. ``unlisted``: which jobs may have been taken beside those whose deliveries are listed.
    """

    def __init__(
        self, names: QueueNames, begun: Begun, parked: dict[int, tuple[int, str]], now: int, unlisted: Unlisted
    ) -> None:
        self.begun: Begun = begun
        self.parked: dict[int, tuple[int, str]] = parked
        self.unlisted: Unlisted = unlisted
        self._names = names
        self._now = now

    def may_be_taken(self, stored: StoredMessage, delivery: Unsettled | None) -> bool:
        """Whether a worker may have, or have had, a job: then there is more to know of it."""
        seq = stored.seq
        return delivery is not None or seq in self.begun or seq in self.parked or self.is_unlisted(stored)

    def is_unlisted(self, stored: StoredMessage) -> bool:
        """Whether a worker may have, or have had, a job whose deliveries are not listed."""
        if not self.unlisted.number or not self._names.is_free(stored.subject):
            return False
        return self.unlisted.may_have(self._names.lane(stored.subject), stored.seq)

    def of(self, seq: int, delivery: Unsettled | None, known: Attempt | None = None) -> JobState:
        """Return the state of a job; ``known`` is its record, where its deliveries are not listed."""
        if delivery is None:
            accounted = accounted_for(known)
            if any(number > accounted for number in self.begun.get(seq, ())):
                return "running"
            if self.parked.get(seq, (0,))[0] > accounted:
                return "held"
            return waiting_state(known) if known is not None and known.retry_at > self._now else "pending"
        if delivery.waits:
            return "pending" if delivery.due <= self._now else state_by_cause(delivery.cause)
        if delivery.num_delivered in self.begun.get(seq, ()):
            return "running"
        return "held" if self.parked.get(seq, (0,))[0] == delivery.num_delivered else "pending"

    def due_of(self, delivery: Unsettled | None, known: Attempt | None) -> int:
        """Return until when a job waits that was given back; 0 for one that its worker holds."""
        if delivery is not None:
            return delivery.due if delivery.waits else 0
        return known.retry_at if known is not None and known.retry_at > self._now else 0

    def due_again(self, known: Attempt | None) -> int | None:
        """Return when a job fell due again that was to wait for a time; None if it is not due; 0 for others."""
        if known is None or waiting_state(known) not in _NOT_DUE:
            return 0
        return known.retry_at if known.retry_at <= self._now else None

    def limit_of(self, seq: int, known: Attempt | None) -> str:
        """Return for which limit a job is held."""
        parked = self.parked.get(seq)
        return parked[1] if parked is not None and parked[0] > accounted_for(known) else known.limit if known else ""

    def complete(self, known: Attempt | None, seq: int, delivery: Unsettled) -> Attempt | None:
        """Return what became of a job's earlier deliveries, also of those that their workers have not ended."""
        deliveries = delivery.num_delivered + delivery.waits
        return with_losses(known, "", deliveries, self.begun.get(seq, ()), self._now)

    def held_for(self, underway: Underway, limits: Iterable[str]) -> dict[str, int]:
        """Return how many jobs each of the ``limits`` holds; one that was taken away since has no name."""
        names = {number_of(name): name for name in limits}
        found = Counter[str]()
        for seq, delivery in underway.items():
            if self.of(seq, delivery) == "held":
                found[names.get(delivery.cause, "") if delivery.waits else self.parked[seq][1]] += 1
        return dict(sorted(found.items()))


async def job_states(jet: Streams, names: QueueNames, begun: BegunLookup, unlisted: Unlisted = ALL_LISTED) -> JobStates:
    """Return the states of a queue's jobs, as of now."""
    found: Begun = {}
    parked: dict[int, tuple[int, str]] = {}
    # A queue of an older version, which is only looked at, has no such stream.
    with suppress(StreamNotFoundError):
        stream = await jet.stream(names.running)
        async with aclosing(stored_messages(stream, names.worker_subject("*"))) as records:
            async for record in records:
                parked |= {seq: (number, limit) for seq, number, limit in _worker(record.data).parked}
        found = await begun.found()
    return JobStates(names, found, parked, jet.runtime.clock.now(), unlisted)


async def oldest_at(jet: Streams, names: QueueNames, underway: Underway, where: JobStates) -> int:
    """Return when the oldest of the jobs that are due was enqueued, or fell due again; 0 if there is none."""
    attempts, since = FailedAttempts(jet, names), list[int]()
    async with aclosing(messages_of_filters(await jet.stream(names.jobs), names.due_jobs)) as found:
        async for stored in found:
            delivery = underway.get(stored.seq)
            if delivery is not None and delivery.waits and where.of(stored.seq, delivery) in _NOT_DUE:
                continue
            known = None
            if where.may_be_taken(stored, delivery):
                known = await attempts.last(job_id_in(stored.data, stored.seq))
            due = where.due_again(known)
            if due is not None:
                since.append(max(stored.time_ns, due))
            if due == 0:
                # All that follow were stored later.
                break
    return min(since, default=0)


async def limit_names(jet: Streams, names: QueueNames) -> list[str]:
    """Return the names of a queue's limits."""
    orders = await orders_in(await jet.stream(names.control), names.limit_subject(">"))
    return [order.limit.name for order in orders if order.limit is not None and not order.over]
