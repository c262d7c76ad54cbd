"""The keys a worker holds: renewed by its keeper's thread, settled by its event loop, each lost at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pelton.api import AckOp, AckRejectedError, Backend, PeltonError
from pelton.jet.register import MovedError
from pelton.queue.keys.ledger import Ledger
from pelton.queue.keys.record import KeyRecord

if TYPE_CHECKING:
    from pelton.queue.ports import Extender

CHANNEL: Final = "keys"


class HeldKey:
    """A key that this worker holds. ``seq`` is its record's sequence, as far as this worker knows.

    ``is_settling``: its attempt is over, and no longer renewed. ``is_settled``: the settled record is stored.
    """

    __slots__ = ("hold", "is_settled", "is_settling", "key", "seq")

    def __init__(self, key: str, seq: int, hold: KeyRecord) -> None:
        self.key: str = key
        self.seq: int = seq
        self.hold: KeyRecord = hold
        self.is_settling: bool = False
        self.is_settled: bool = False


Holdings = dict[int, HeldKey]
"""The keys a worker holds, by token; read by two threads, changed by its event loop."""


def replaced(stream: str, job: int) -> AckRejectedError:
    """Return the error for a holder that was replaced."""
    return AckRejectedError(stream, CHANNEL, job, "its key was taken over by another worker, which runs the job again")


class HoldExtender:
    """Extends leases: on keys itself, on anything else through the store."""

    def __init__(self, backend: Backend, ledger: Ledger, holdings: Holdings) -> None:
        self._backend = backend
        self._ledger = ledger
        self._holdings = holdings

    def clone(self) -> Extender:
        """Return a copy for another thread; it shares the holdings."""
        backend = self._backend.clone()
        return HoldExtender(backend, self._ledger.over(backend), self._holdings)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend leases, all at once; raises StoreError if none of them can be extended."""
        if consumer != CHANNEL:
            return await self._backend.ack(stream, consumer, acks)
        return list(await asyncio.gather(*(self._renew(stream, ack) for ack in acks)))

    async def close(self) -> None:
        """Close the connection."""
        await self._backend.close()

    async def _renew(self, stream: str, ack: AckOp) -> PeltonError | None:
        held = self._holdings.get(ack.token)
        if held is None:
            return replaced(stream, ack.seq)
        while not held.is_settling:
            seen = held.seq
            try:
                held.seq = await self._ledger.write(held.key, held.hold, seen)
            except MovedError:
                if held.is_settling:
                    break
                seq, hold = await self._ledger.read(held.key)
                if hold is None or hold.token != held.hold.token or hold.state != "held":
                    return replaced(stream, ack.seq)
                held.seq = seq
            else:
                return None
        # Its attempt is over: the settler decides about it.
        return None
