"""Following the keys: which of them have jobs, and their records. Two ordered readers feed a worker's table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pelton.api import Delivered, PeltonError, StoreError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.ordered import OrderedReader
from pelton.queue.backing.outage import can_pass
from pelton.queue.keys.record import decode
from pelton.queue.keys.table import KeyTable
from pelton.queue.model.naming import QueueNames

if TYPE_CHECKING:
    from pelton.jet import Streams

_log: Final = logging.getLogger("pelton.queue")
_AGAIN_S: Final = 0.5
_HEARTBEAT_S: Final = 1.0


class Watch:
    """Reads the last message of each subject, then all new ones, into a table; recreates a reader that ends.

    ``told`` is called when there may be something to do, and when everything stored at the start has been read.
    """

    is_caught_up: bool

    def __init__(self, jet: Streams, names: QueueNames, table: KeyTable, told: Callable[[], None]) -> None:
        self._jet = jet
        self._clock = jet.runtime.clock
        self._names = names
        self._table = table
        self._told = told
        self._unread = 2
        self.is_caught_up = False

    async def follow_jobs(self) -> None:
        """Note every stored job, forever, without reading payloads."""
        await self._follow(
            self._names.jobs,
            self._saw_job,
            began=self._table.looks_at_jobs,
            known=self._table.knows_jobs,
            filter_subjects=list(self._names.keyed_jobs),
            headers_only=True,
        )

    async def follow_records(self) -> None:
        """Note every record that is written, forever."""
        await self._follow(self._names.keys, self._saw_record, filter_subject=self._names.hold_subject(">"))

    async def _follow(
        self,
        stream: str,
        saw: Callable[[Delivered], bool],
        *,
        began: Callable[[], None] = lambda: None,
        known: Callable[[int], None] = lambda upto: None,
        **fields: Any,
    ) -> None:
        """Follow a stream; ``began`` is called when a reader begins, ``known`` when it has read what was stored."""
        first = True
        while True:
            reader = OrderedReader(
                self._jet.backend,
                self._jet.runtime,
                stream,
                heartbeat=_HEARTBEAT_S,
                deliver_policy="last_per_subject",
                **fields,
            )
            is_looking = True
            try:
                began()
                left = await reader.begin()
                if not left:
                    is_looking = False
                    known(0)
                if first and not left:
                    self._has_read()
                    first = False
                async with aclosing(reader.read()) as deliveries:
                    async for delivered in deliveries:
                        if saw(delivered):
                            self._told()
                        if is_looking and not delivered.num_pending:
                            is_looking = False
                            known(delivered.seq)
                        if first and not delivered.num_pending:
                            self._has_read()
                            first = False
            except FINAL_ERRORS:
                raise
            except PeltonError as error:
                if not (isinstance(error, StoreError) or can_pass(error)):
                    raise
                _log.warning(
                    "queue %r: stream %s can't be followed yet: %s",
                    self._names.queue,
                    stream,
                    error,
                    extra={"queue": self._names.queue, "stream": stream},
                )
                await self._clock.sleep(_AGAIN_S)
            finally:
                await reader.close()

    def _has_read(self) -> None:
        self._unread -= 1
        self.is_caught_up = not self._unread
        self._told()

    def _saw_job(self, delivered: Delivered) -> bool:
        key = self._names.key_of_job(delivered.subject)
        priority = self._names.priority_of_key(delivered.subject)
        return self._table.saw_job(key, delivered.seq, self._clock.boottime(), priority)

    def _saw_record(self, delivered: Delivered) -> bool:
        key = self._names.key_of_hold(delivered.subject)
        age = (self._clock.now() - delivered.time_ns) / 1e9
        return self._table.saw_record(key, delivered.seq, decode(delivered.data), self._clock.boottime(), max(age, 0.0))
