"""What a worker knows of the keys when it begins, even if jobs vanish before it is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

import pelton
from pelton.api import ConsumerConfig, Delivered
from pelton.jet import registers
from pelton.jet.message_source import OrderedReader, Pushed
from pelton.queue.key_table import KeyTable
from pelton.queue.keyed_source import Watch
from pelton.queue.model.naming import QueueNames


class Vanishing(OrderedReader):
    """A reader of three messages, of which two are removed before they are delivered."""

    async def _begin(self) -> Pushed:
        self._pending = 3
        return Pushed(self._backend, ConsumerConfig(), self._stream)

    async def _in_order(self, pushed: Pushed) -> AsyncGenerator[Delivered | None, None]:
        yield Delivered(
            subject=QueueNames("garage").subjects_of_key("car", 0)[0],
            seq=1,
            time_ns=0,
            headers=None,
            data=b"",
            consumer_seq=1,
            num_delivered=1,
            num_pending=2,
            stream=self._stream,
            consumer="c",
        )
        yield None
        await asyncio.Event().wait()

    async def _is_through(self) -> bool:
        return True


async def test_jobs_that_vanish_leave_nobody_waiting_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "OrderedReader", Vanishing)
    async with pelton.open("memory:") as jet:
        table, told = KeyTable(10.0, jet.runtime.random), asyncio.Event()
        watch = Watch(jet, QueueNames("garage"), table, told.set)
        following = asyncio.create_task(watch.follow_jobs())
        async with asyncio.timeout(60):
            while not table.is_known(1):
                await told.wait()
                told.clear()
        assert not table.is_known(2)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
