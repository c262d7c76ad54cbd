"""An open queue, as the rooms pass it down: what it is made of, without what it can do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import StreamNotFoundError
from pelton.jet.registers import Outage, can_pass

if TYPE_CHECKING:
    from pelton.api import Backend
    from pelton.jet import Stream, Streams
    from pelton.jet.streams import StoreTime
    from pelton.queue.define.registry import JobRegistry
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.ports import BegunLookup, JobSource, QueueStats
    from pelton.runtime import Clock, Runtime

_log: Final = logging.getLogger("pelton.queue")


class Probes(msgspec.Struct, kw_only=True):
    """What a test is told, all optional.

    ``on_error``: of an id and an error of a job, by workers that start later. ``on_stored`` is awaited after each
    enqueue. ``on_idle``: by a worker that would end (``until_idle``), with the seconds until a job may start, or
    infinity; if it returns true, the worker looks again.
    """

    on_error: Callable[[str, BaseException], None] | None = None
    on_stored: Callable[[], Awaitable[None]] | None = None
    on_idle: Callable[[float], bool] | None = None


class QueueContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of an open queue.

    ``lease`` in seconds; ``jobs`` are those it knows; ``source_for`` returns the job source of the worker with
    that name; ``time`` is that of its store, which what is stored counts by.
    """

    jet: Streams
    names: QueueNames
    exclusive: bool
    lease: float
    stats: QueueStats
    begun: BegunLookup
    source_for: Callable[[str], JobSource]
    jobs: JobRegistry
    time: StoreTime
    probes: Probes = msgspec.field(default_factory=Probes)

    async def side_to_read(self, name: str) -> Stream:
        """Return a side stream, to look for messages of its subjects.

        If it is missing, because an older version made the queue, which is only looked at here: another stream, which
        has none.
        """
        try:
            return await self.jet.stream(name)
        except StreamNotFoundError:
            return await self.jet.stream(self.names.jobs)

    def outage(self, part: str = "", passes: Callable[[Exception], bool] = can_pass) -> Outage:
        """Return the outages of its store, as a ``part`` of a worker notices them."""
        who = f"queue {self.name!r}{part and f' ({part})'}"
        return Outage(_log, self.clock, who, passes, queue=self.name)

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.names.queue

    @property
    def backend(self) -> Backend:
        """The backend of its streams."""
        return self.jet.backend

    @property
    def runtime(self) -> Runtime:
        """Clock, randomness, ids and background tasks."""
        return self.jet.runtime

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self.jet.runtime.clock
