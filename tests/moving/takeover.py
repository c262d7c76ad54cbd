"""What a program loads a store with while its standby takes its place, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import pelton
from pelton.api import StoreStandbyError
from pelton.moving import promote
from tests.kit.fencing import FencedRegister


async def tokens_given(jet: Any, rounds: int) -> dict[str, int]:
    """Return the last token of each kind that a store gives."""
    given: dict[str, int] = {}
    consumer = await (await jet.stream("work")).consumer("workers")
    for _ in range(rounds):
        await jet.publish("work.key", b"")
        [message] = await consumer.fetch(1, timeout=5)
        given["delivery"] = message.delivered.token
        await message.ack()
        async with jet.lock("door", ttl=5) as lease:
            given["lock"] = lease.token
        async with jet.semaphore("cranes", slots=2, ttl=5) as lease:
            given["semaphore"] = lease.token
    return given


async def load(jet: Any, acknowledged: list[int]) -> None:
    with suppress(StoreStandbyError):
        while True:
            at = time.time_ns()
            await jet.publish("orders", b"x" * 300)
            acknowledged.append(max(at, time.time_ns()))


async def check_lease(new: Any, token: int) -> None:
    """The lease that was held lasts, and its holder cannot renew it in the new store."""
    bucket = await new.bucket("pelton_locks")
    held = await bucket.get("lock.door")
    assert held.revision > token + 10**13
    with pytest.raises(pelton.WrongLastSequenceError):
        await bucket.update("lock.door", held.value, token)
    with pytest.raises(pelton.LockTimeoutError):
        await new.lock("door", ttl=5).acquire(timeout=0)


async def check_one_holder(pair: Any, turn: Callable[[], Awaitable[None]]) -> None:
    """Whoever was cut off with the old store, and goes on, is refused by its tokens."""
    registers = {name: FencedRegister() for name in ("free", "keyed", "term")}
    begun, may_end = {name: asyncio.Event() for name in registers}, asyncio.Event()
    jobs = pelton.Jobs()

    @jobs.job(timeout=60)
    async def repair(kind: str, context: pelton.JobContext) -> None:
        first = not begun[kind].is_set()
        registers[kind].write("old" if first else "new", context.token)
        begun[kind].set()
        if first:
            await may_end.wait()
            assert not registers[kind].write("old", context.token)

    async with pair.open() as jet, jet.elect("boss", ttl=1) as term:
        registers["term"].write("old", term.token)
        yard = await jet.queue("yard", jobs=jobs, lease=1)
        garage = await jet.queue("garage", jobs=jobs, exclusive=True, lease=1)
        await yard.enqueue(repair, "free")
        await garage.options(key="car1").enqueue(repair, "keyed")
        options: dict[str, Any] = {"until_idle": True, "handle_signals": False}
        working = [asyncio.ensure_future(queue.work(**options)) for queue in (yard, garage)]
        await asyncio.gather(begun["free"].wait(), begun["keyed"].wait())
        await turn()
        await promote(pair.standby, ask_source=False)
        async with pair.open(pair.standby) as new:
            for name, exclusive in (("yard", False), ("garage", True)):
                other = await new.queue(name, jobs=jobs, exclusive=exclusive)
                await other.work(until_empty=True, handle_signals=False)
            async with new.elect("boss") as later:
                assert registers["term"].write("new", later.token)
        # Cut off with the old store, the first workers go on: whoever compares tokens refuses them.
        may_end.set()
        await asyncio.gather(*working)
        assert not registers["term"].write("old", term.token)
    for register in registers.values():
        assert [(one.who, one.is_taken) for one in register.writes] == [("old", True), ("new", True), ("old", False)]
