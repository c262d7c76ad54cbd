"""An open queue, as the rooms pass it down: what it is made of, without what it can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pelton.api import Backend
    from pelton.jet import Streams
    from pelton.queue.define.registry import JobRegistry
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.ports import JobSource, QueueStats
    from pelton.runtime import Clock, Runtime


class QueueContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of an open queue.

    ``lease`` in seconds; ``jobs`` are those it knows; ``source_for`` returns the job source of the worker with
    that name.
    """

    jet: Streams
    names: QueueNames
    exclusive: bool
    lease: float
    stats: QueueStats
    source_for: Callable[[str], JobSource]
    jobs: JobRegistry

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
