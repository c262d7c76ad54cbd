"""Extends the leases of jobs together with their slots: a job that has lost its slot has lost its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pelton.api import AckOp, AckRejectedError, Backend, PeltonError
from pelton.jet.register import MovedError, Register
from pelton.queue.model.limits import EMPTY, SlotRecord, beaten

if TYPE_CHECKING:
    from pelton.queue.ports import Extender
    from pelton.runtime import Clock


class SlotExtender:
    """Extends leases, and the slots of their jobs. ``slots``: the places of each job that holds any, by sequence.

    ``slots`` is read by the keeper's thread, and changed by the worker's event loop.
    """

    def __init__(
        self,
        inner: Extender,
        backend: Backend,
        register: Register[SlotRecord],
        slots: Mapping[int, Collection[str]],
        worker: str,
        clock: Clock,
    ) -> None:
        self._inner = inner
        self._backend = backend
        self._register = register
        self._slots = slots
        self._worker = worker
        self._clock = clock
        # A copy's own connection for the records, once it needs one.
        self._own: Backend | None = None
        self._is_copy = False

    def clone(self) -> SlotExtender:
        """Return a copy for another thread."""
        copy = SlotExtender(self._inner.clone(), self._backend, self._register, self._slots, self._worker, self._clock)
        copy._is_copy = True
        return copy

    async def close(self) -> None:
        """Close the connections."""
        own, self._own = self._own, None
        await self._inner.close()
        if own is not None:
            await own.close()

    def _connected(self) -> Register[SlotRecord]:
        if self._is_copy and self._own is None:
            self._own = self._backend.clone()
            self._register = self._register.over(self._own)
        return self._register

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend leases; one entry each: None, or why the lease is lost."""
        places: dict[str, list[int]] = {}
        for ack in acks:
            for place in self._slots.get(ack.seq, ()):
                places.setdefault(place, []).append(ack.seq)
        if not places:
            return await self._inner.ack(stream, consumer, acks)
        found = await asyncio.gather(*(self._extend(place, jobs) for place, jobs in places.items()))
        lost = {job for jobs in found for job in jobs}
        # The lease of a job that has lost its slot runs out, so that it is taken anew.
        kept = [ack for ack in acks if ack.seq not in lost]
        answers = iter(await self._inner.ack(stream, consumer, kept) if kept else [])
        return [_lost(stream, consumer, ack.seq) if ack.seq in lost else next(answers) for ack in acks]

    async def _extend(self, place: str, jobs: Sequence[int]) -> list[int]:
        """Extend the slots of jobs at a place; return those that have none any more."""
        register = self._connected()
        while True:
            seq, record = await register.read(place)
            record = record or EMPTY
            mine = record.workers.get(self._worker)
            held = set(mine.jobs) if mine is not None else set()
            # One that was released meanwhile is not lost.
            lost = [job for job in jobs if job not in held and place in self._slots.get(job, ())]
            if not held.intersection(jobs):
                return lost
            try:
                await register.write(place, beaten(record, self._worker, self._clock.now()), seq)
            except MovedError:
                continue
            return lost


def _lost(stream: str, consumer: str, job: int) -> AckRejectedError:
    return AckRejectedError(stream, consumer, job, "its slot of a limit was given to another job")
