"""Following the keys: which of them have jobs, and their records. Two ordered readers feed a worker's table."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final

from pelton.api import Delivered
from pelton.jet.follower import Follower, last_and_new
from pelton.jet.outage import Outage, is_busy
from pelton.queue.keys.record import decode
from pelton.queue.keys.table import KeyTable
from pelton.queue.model.naming import QueueNames

if TYPE_CHECKING:
    from pelton.jet import Streams

_log: Final = logging.getLogger("pelton.queue")


class Watch:
    """Reads the last message of each subject, then all new ones, into a table.

    ``told`` is called when there may be something to do, and when everything stored at the start has been read.
    """

    is_caught_up: bool

    def __init__(self, jet: Streams, names: QueueNames, table: KeyTable, told: Callable[[], None]) -> None:
        self._jet = jet
        self._clock = jet.runtime.clock
        self._names = names
        self._table = table
        self._told = told
        self._unread = {names.jobs, names.keys}
        # The last job that the present reader has seen.
        self._last_job = 0
        self.is_caught_up = False

    async def follow_jobs(self) -> None:
        """Note every stored job, forever, without reading payloads."""
        await self._follow(self._names.jobs, self._opened_jobs, self._saw_job)

    async def follow_records(self) -> None:
        """Note every record that is written, forever."""
        await self._follow(self._names.keys, self._opened_records, self._saw_record)

    async def _follow(
        self,
        stream: str,
        opened: Callable[[], AsyncGenerator[Delivered | None, None]],
        saw: Callable[[Delivered], bool],
    ) -> None:
        outage = Outage(
            _log, self._clock, f"queue {self._names.queue!r} (stream {stream})", is_busy, queue=self._names.queue
        )

        async def see(one: Delivered | None) -> None:
            if one is None:
                self._has_read(stream)
            elif saw(one):
                self._told()

        await Follower(opened, see, outage.wait, outage.is_over).follow()

    def _opened_jobs(self) -> AsyncGenerator[Delivered | None, None]:
        self._table.looks_at_jobs()
        self._last_job = 0
        subjects = list(self._names.keyed_jobs)
        return last_and_new(self._jet, self._names.jobs, filter_subjects=subjects, headers_only=True)

    def _opened_records(self) -> AsyncGenerator[Delivered | None, None]:
        return last_and_new(self._jet, self._names.keys, filter_subject=self._names.hold_subject(">"))

    def _has_read(self, stream: str) -> None:
        if stream == self._names.jobs:
            self._table.knows_jobs(self._last_job)
        if stream in self._unread:
            self._unread.remove(stream)
            self.is_caught_up = not self._unread
            self._told()

    def _saw_job(self, delivered: Delivered) -> bool:
        self._last_job = delivered.seq
        key = self._names.key_of_job(delivered.subject)
        priority = self._names.priority_of_key(delivered.subject)
        return self._table.saw_job(key, delivered.seq, self._clock.boottime(), priority)

    def _saw_record(self, delivered: Delivered) -> bool:
        key = self._names.key_of_hold(delivered.subject)
        age = (self._clock.now() - delivered.time_ns) / 1e9
        return self._table.saw_record(key, delivered.seq, decode(delivered.data), self._clock.boottime(), max(age, 0.0))
