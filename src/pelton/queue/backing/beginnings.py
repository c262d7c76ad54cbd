"""Which jobs have begun: their functions were called, which is what counts as an attempt.

Design: a delivery only tells that a worker has taken a job. What the worker has begun must be known when it dies, and
must cost little. In a store file it is a mark in memory that outlives the process (``storage/begun_marks.py``). On a
cluster each worker has one record, the list of the deliveries that it has begun, and a job begins when the record that
lists it is stored; those that begin while one is being written share the next one. What has ended leaves the list when
it is written again: until then it says nothing new, because the job's own record counts that delivery already.

A worker that has lost a lease keeps the delivery listed, for the worker that takes the job next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import PeltonError, headers
from pelton.queue.backing.scan import deliveries, stored_messages
from pelton.queue.model.records import accounted_for, job_id_of, with_losses

if TYPE_CHECKING:
    from pelton.api import Delivered
    from pelton.api.backend import BegunDeliveries
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.states import Attempt
    from pelton.queue.ports import Begun

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
# As the records of failed attempts; afterwards what its worker had begun counts as not begun.
_TTL: Final = headers.encode({headers.TTL: "720h"})
_MOST_OPEN: Final = 1024
# What was read serves for this share of a lease: a job is taken anew only a good part of one after it began.
_FRESH_SHARE: Final = 0.1


class BegunJobs:
    """What the workers of a queue have begun, wherever they run. ``marks``: those of a store file."""

    def __init__(self, jet: Streams, names: QueueNames, lease: float, marks: BegunDeliveries | None) -> None:
        self.jet = jet
        self.names = names
        self.marks = marks
        self._fresh_s = lease * _FRESH_SHARE
        self._found: Begun = {}
        self._asked = float("-inf")

    async def found(self) -> Begun:
        """Return what was begun by now."""
        found: dict[int, set[int]] = {}
        if self.marks is not None:
            found = {seq: set(numbers) for seq, numbers in self.marks.found().items()}
        stream = await self.jet.stream(self.names.running)
        # In a store file there are none, or few: of workers that came through a server.
        read = deliveries if self.marks is None else stored_messages
        async with aclosing(read(stream, self.names.begun_subject("*"))) as records:
            async for record in records:
                for seq, number in _decode(record.data):
                    found.setdefault(seq, set()).add(number)
        return found

    async def complete(self, known: Attempt | None, delivered: Delivered) -> Attempt | None:
        """Return what became of all earlier deliveries of a job; ``known`` is what its attempts have left."""
        if accounted_for(known) >= delivered.num_delivered - 1:
            return known
        clock = self.jet.runtime.clock
        if self.marks is not None or clock.boottime() - self._asked > self._fresh_s:
            asked = clock.boottime()
            self._found, self._asked = await self.found(), asked
        begun = self._found.get(delivered.seq, ())
        return with_losses(known, job_id_of(delivered), delivered.num_delivered, begun, clock.now())


class WorkerBeginnings:
    """What one worker has begun: see ``ports.Beginnings``."""

    def __init__(self, jobs: BegunJobs, worker: str) -> None:
        self._jet = jobs.jet
        self.marks: BegunDeliveries | None = jobs.marks
        self._running = jobs.names.running
        self._subject = jobs.names.begun_subject(worker)
        self.is_written: bool = jobs.marks is None
        self._open: deque[Delivered] = deque()
        # What is listed, and how many times something was added to that, and to what is stored.
        self._listed: dict[tuple[int, int], None] = {}
        self._added = 0
        self._stored = 0
        self._task: asyncio.Task[None] | None = None

    async def write(self, begun: Iterable[Delivered]) -> None:
        """Store that these jobs begin; once it returns, they may. Raises PeltonError."""
        for delivered in begun:
            self._listed[delivered.seq, delivered.num_delivered] = None
        self._added += 1
        wanted = self._added
        while self._stored < wanted:
            await asyncio.shield(self._begin_to_store())

    def _begin_to_store(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = self._jet.runtime.spawn(self._store(), f"pelton writes {self._subject}")
            self._task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._task

    async def _store(self) -> None:
        added = self._added
        try:
            await self._jet.backend.publish(self._subject, _encode(list(self._listed)), _TTL)
            self._stored = added
        finally:
            self._task = None
        if self._stored < self._added:
            self._begin_to_store()

    def end(self, settled: Sequence[Delivered]) -> None:
        """Note that these jobs are settled."""
        numbers = [(delivered.seq, delivered.num_delivered) for delivered in settled]
        if self.marks is not None:
            self.marks.unmark(numbers)
        else:
            for number in numbers:
                self._listed.pop(number, None)

    def forget(self, delivered: Delivered, *, has_begun: bool) -> None:
        """Note that a job is held no longer that somebody else ends."""
        if has_begun:
            self._open.append(delivered)
            if len(self._open) > _MOST_OPEN:
                self.end([self._open.popleft()])
        elif (delivered.seq, delivered.num_delivered) in self._listed:
            # It was listed, and did not begin after all.
            self.end([delivered])
            self._added += 1
            self._begin_to_store()
        else:
            self.end([delivered])

    async def close(self) -> None:
        """Leave nothing but what others need."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stored and not self._listed:
            with suppress(PeltonError):
                stream = await self._jet.stream(self._running)
                await stream.purge(filter=self._subject)
