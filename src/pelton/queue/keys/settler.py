"""Settling the keys a worker holds: one write decides, and everything else follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pelton.api import ApiError
from pelton.api.admission import check_subject
from pelton.jet.register import MovedError
from pelton.queue.keys.held_keys import HeldKey, replaced
from pelton.queue.keys.ledger import Ledger, outbox_of
from pelton.queue.keys.record import settled, taken_back
from pelton.queue.keys.table import KeyTable
from pelton.queue.model.records import Ended

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames

_IN_FLIGHT_S: Final = 0.01


class Settler:
    """Settles the keys that one worker holds. May be called again after a StoreError."""

    def __init__(self, jet: Streams, names: QueueNames, ledger: Ledger, table: KeyTable) -> None:
        self._clock = jet.runtime.clock
        self._ids = jet.runtime.ids
        self._names = names
        self._ledger = ledger
        self._table = table

    async def settle(self, held: HeldKey, ended: Ended) -> None:
        """Store how an attempt ended, and carry it out; raises as ``JobSource.settle`` does."""
        for message in ended.messages:
            check_subject(message.subject)
        if not held.is_settled:
            await self._commit(held, ended)
        try:
            seq, after = await self._ledger.carry_out(held.key, held.seq, held.hold)
        except MovedError:
            # Another worker was faster.
            return
        except ApiError:
            await self._take_back(held)
            raise
        self._table.saw_record(held.key, seq, after, self._clock.boottime())

    async def _commit(self, held: HeldKey, ended: Ended) -> None:
        """Write the settled record; raises AckRejectedError if another worker holds the key by now."""
        held.is_settling = True
        name, outbox, delay_ns = self._ids.new(), outbox_of(ended.messages), ended.ack.delay_ns
        over = settled(held.hold, name, outbox, ended=ended.is_over, delay_ns=delay_ns, known=ended.known)
        while not held.is_settled:
            try:
                held.seq = await self._ledger.write(held.key, over, held.seq)
            except MovedError:
                await self._look_again(held)
            except ApiError:
                held.is_settling = False
                raise
            else:
                held.hold, held.is_settled = over, True
        self._table.saw_record(held.key, held.seq, held.hold, self._clock.boottime())

    async def _look_again(self, held: HeldKey) -> None:
        """Find out why a settlement was refused: our own renewal, or our write whose reply was lost, are harmless."""
        seq, hold = await self._ledger.read(held.key)
        if hold is None or hold.token != held.hold.token:
            raise replaced(self._names.jobs, held.hold.job)
        if hold.state == "settled":
            held.hold, held.is_settled = hold, True
        elif seq == held.seq:
            # Another write is in flight: wait until it is known which came first.
            await self._clock.sleep(_IN_FLIGHT_S)
        held.seq = seq

    async def _take_back(self, held: HeldKey) -> None:
        """Reopen the attempt, because one of its messages is refused: it ends later, as a failed one."""
        before = taken_back(held.hold)
        try:
            held.seq = await self._ledger.write(held.key, before, held.seq)
        except MovedError:
            raise replaced(self._names.jobs, held.hold.job) from None
        held.hold, held.is_settled, held.is_settling = before, False, False
