"""The ports of a queue: what its rooms ask of each other, and what a backing provides. Protocols only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from pelton.api import AckOp, Delivered, Outgoing, PeltonError, PullRequest, Unsettled, UnsettledGroup

if TYPE_CHECKING:
    from pelton.api.backend import BegunDeliveries
    from pelton.queue.model.records import Ended
    from pelton.queue.model.states import Attempt, JobInfo, Outcome

Underway = dict[int, Unsettled]
"""Jobs that were taken and have not ended, by sequence."""


class Unlisted(NamedTuple):
    """Jobs that were taken, but servers do not say which: ``number`` of those up to a sequence, by consumer.

    In an exclusive queue, they have no key.
    """

    upto: Mapping[str, int]
    number: int

    def may_have(self, lane: str, seq: int) -> bool:
        """Whether a job may have been taken; in an exclusive queue, one without a key (``QueueNames.lane``)."""
        return seq <= self.upto.get(lane, 0)


ALL_LISTED: Final = Unlisted({}, 0)


class UnderwayCounts(NamedTuple):
    """Jobs that were taken and have not ended: those that a worker holds, by sequence, and how many were given back."""

    taken: Underway
    given_back: Sequence[UnsettledGroup]

    @property
    def number(self) -> int:
        """How many all of them are."""
        return len(self.taken) + sum(group.number for group in self.given_back)

    def may_have(self, seq: int) -> bool:
        """Whether a job may be among them."""
        return seq in self.taken or any(group.first_seq <= seq for group in self.given_back)


class UnderwayPart(NamedTuple):
    """Some of the jobs that were taken and have not ended.

    ``sequences``, if any are given; else those that were given back for a cause from the first to the last of
    ``causes`` and are due later than ``due_after``, but at ``due_upto`` if given (wall nanoseconds); (-1, -1) for those
    that a worker holds. At most ``limit``, behind the time and sequence ``after``, by ``due`` or by sequence; or
    ``descending``.
    """

    sequences: tuple[int, ...] = ()
    causes: tuple[int, int] | None = None
    due_after: int = 0
    due_upto: int = 0
    by_due: bool = False
    descending: bool = False
    after: tuple[int, int] | None = None
    limit: int = 1000


class QueueStats(Protocol):
    """How the views of a queue learn what its workers hold."""

    async def underway(self) -> Underway:
        """Return the jobs that were taken and have not ended, by sequence."""
        ...

    async def count_underway(self) -> UnderwayCounts:
        """Return how many :meth:`underway` would return, and which of them workers hold."""
        ...

    async def select(self, part: UnderwayPart) -> list[Unsettled]:
        """Return some of what :meth:`underway` would return."""
        ...

    async def unlisted(self) -> Unlisted:
        """Return which jobs may have been taken that :meth:`underway` does not return; ALL_LISTED if it returns all."""
        ...

    async def untouched(self, underway: int) -> int:
        """Return how many jobs were never taken, if so many were taken and have not ended."""
        ...


class TakenJob(msgspec.Struct, frozen=True, gc=False):
    """A job for a worker. Its lease counts from ``asked`` (seconds since boot); None means from the request."""

    delivered: Delivered
    asked: float | None = None


Begun = Mapping[int, Collection[int]]
"""The numbers of the deliveries that were begun, and that may not have ended, by the sequence of their jobs."""


class BegunLookup(Protocol):
    """How the views of a queue learn which jobs have begun."""

    async def find_begun(self) -> Begun:
        """Return what any worker has begun by now."""
        ...


class Beginnings(Protocol):
    """What one worker has begun.

    ``is_written``: call :meth:`write` before a job begins. ``marks``: mark it there last, if there are any.
    """

    is_written: bool
    marks: BegunDeliveries | None

    async def write(self, begun: Iterable[Delivered]) -> None:
        """Store that these jobs begin; once it returns, they may. Raises PeltonError."""
        ...

    def end(self, settled: Sequence[Delivered]) -> None:
        """Note that these jobs are settled."""
        ...

    def forget(self, delivered: Delivered, *, has_begun: bool) -> None:
        """Note that a job is held no longer that somebody else ends."""
        ...

    async def close(self) -> None:
        """Leave nothing but what others need."""
        ...


class Extender(Protocol):
    """Extends leases: a part of ``Backend``."""

    def clone(self) -> Extender:
        """Return a copy for another thread and event loop; close it as well."""
        ...

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend the leases that acks of kind ``progress`` name; one entry each: None, or why the lease is lost."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class JobSource(Protocol):
    """The jobs of a queue, for one worker.

    ``channels`` names the ways they arrive, ``ranked`` those of jobs with a priority, the highest first. ``tenants``
    are those that are only waited for, each with the channel from which jobs with a tenant are taken. ``beginnings``:
    of which of its jobs the worker notes that they begin.
    """

    channels: Sequence[str]
    ranked: Sequence[str]
    tenants: Mapping[str, str]
    extender: Extender
    beginnings: Beginnings

    @property
    def is_new(self) -> bool:
        """Whether hardly any job of the queue had ended at the first :meth:`has_ranked`."""
        ...

    async def has_ranked(self) -> bool:
        """Whether there are jobs with a priority that have not ended; finds out which tenants have jobs."""
        ...

    def weigh(self, tenant: str, weight: int) -> None:
        """Note the weight of a tenant."""
        ...

    async def take(self, channel: str, request: PullRequest) -> list[TakenJob]:
        """Take jobs, as a pull does."""
        ...

    async def earlier_attempt(self, delivered: Delivered) -> Attempt | None:
        """Return what became of all earlier deliveries of a job; None for its first one."""
        ...

    async def keep(self, delivered: Delivered, message: Outgoing) -> None:
        """Store a message of a job that goes on, while it is held, and extend its lease.

        Raises AckRejectedError if the attempt was replaced, and on a cluster WrongLastSequenceError if there is a
        message of its subject: nothing is stored then.
        """
        ...

    async def settle(self, ended: Ended) -> None:
        """End an attempt: publish its records and messages, and acknowledge its job or give it back.

        Raises AckRejectedError if the attempt was replaced: it then has no effect. Raises ApiError if a message is
        refused: the attempt then is not over.
        """
        ...

    async def settle_many(self, endings: Sequence[Ended]) -> list[PeltonError | None]:
        """End many attempts, each as :meth:`settle` does; one entry each: None, or why it had no effect.

        Raises StoreError only if the store fails for good.
        """
        ...

    def forget(self, deliveries: Iterable[Delivered]) -> None:
        """Release jobs that were taken, settled or not."""
        ...

    async def is_empty(self) -> bool:
        """Whether no unfinished job is left."""
        ...

    async def close(self) -> None:
        """Take no more; give back what was taken and not handed out. Idempotent."""
        ...


class FlowFollower(Protocol):
    """What carries out the flows of a queue, beside a worker."""

    def notice(self) -> None:
        """Begin: the queue has flows."""
        ...

    async def follow(self) -> None:
        """Carry out flows for ever, once there are any."""
        ...

    async def is_idle(self) -> bool:
        """Whether nothing can be done for flows now: it may be later."""
        ...

    async def quiet(self) -> int | None:
        """Return None while something is to be done for flows, else a number that grows with all that happens."""
        ...


class JobLookup(Protocol):
    """How the handle of a job finds out what became of it."""

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id. Raises JobNotFoundError, ConfigError."""
        ...

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job; return False if it had ended otherwise. Raises JobNotFoundError, ConfigError."""
        ...

    async def outcome(self, job_id: str, limit: float | None) -> Outcome | None:
        """Wait until a job has ended, for ``limit`` seconds at most; None if it has not ended by then."""
        ...
