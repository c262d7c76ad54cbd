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
from pelton.queue.backing.scan import stored_messages
from pelton.queue.model.limits import number_of
from pelton.queue.model.orders import Order
from pelton.queue.model.records import accounted_for, with_losses
from pelton.queue.model.states import JobState, WorkerReport

if TYPE_CHECKING:
    from pelton.api import Unsettled
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.states import Attempt
    from pelton.queue.ports import Begun, BegunLookup, Underway

_worker: Final = msgspec.json.Decoder(WorkerReport).decode
_order: Final = msgspec.json.Decoder(Order).decode


class JobStates:
    """The states as of ``now`` (wall nanoseconds).

    ``parked``: the jobs that wait in a worker for a limit, by sequence, each with the number of its delivery and the
    name of the limit.
    """

    def __init__(self, begun: Begun, parked: dict[int, tuple[int, str]], now: int) -> None:
        self.begun: Begun = begun
        self.parked: dict[int, tuple[int, str]] = parked
        self._now = now

    def of(self, seq: int, delivery: Unsettled | None, known: Attempt | None = None) -> JobState:
        """Return the state of a job; ``known`` is its record, where its deliveries are not listed."""
        if delivery is None:
            accounted = accounted_for(known)
            if any(number > accounted for number in self.begun.get(seq, ())):
                return "running"
            return "held" if self.parked.get(seq, (0,))[0] > accounted else "pending"
        if delivery.waits:
            if delivery.due <= self._now:
                return "pending"
            return "held" if delivery.cause else "retrying"
        if delivery.num_delivered in self.begun.get(seq, ()):
            return "running"
        return "held" if self.parked.get(seq, (0,))[0] == delivery.num_delivered else "pending"

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


async def job_states(jet: Streams, names: QueueNames, begun: BegunLookup) -> JobStates:
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
    return JobStates(found, parked, jet.runtime.clock.now())


async def limit_names(jet: Streams, names: QueueNames) -> list[str]:
    """Return the names of a queue's limits."""
    found: list[str] = []
    async with aclosing(stored_messages(await jet.stream(names.control), names.limit_subject(">"))) as orders:
        async for stored in orders:
            order = _order(stored.data)
            if order.limit is not None and not order.over:
                found.append(order.limit.name)
    return found
