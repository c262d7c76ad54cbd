"""The ports of a queue: what its rooms ask of each other, and what a backing provides. Protocols only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from pelton.api import AckOp, Delivered, PeltonError, Unsettled, UnsettledGroup

if TYPE_CHECKING:
    from pelton.queue.model.states import JobInfo, Outcome

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
    """Jobs that were taken and have not ended: those that a worker holds, by sequence, and how many were given back.

    ``passed``: up to which sequence all jobs of a filter were taken, where that is known.
    """

    taken: Underway
    given_back: Sequence[UnsettledGroup]
    passed: Mapping[str, int] = {}

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
