"""What time it is in a cluster, for a program whose clock is wrong, and jumps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pelton.api import StoreClosedError, rfc3339
from pelton.api.times import SECOND
from pelton.jet.streams import StoreTime
from pelton.testing import ManualRuntime, manual_runtime

HOUR = 3600 * SECOND


class Servers:
    """A cluster whose clock is right, and which answers when it is let."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self.planning = SimpleNamespace(steady_time=False)
        self._clock = runtime.clock
        self._start = runtime.clock.now()
        self.asked = 0
        self.answers = asyncio.Event()
        self.is_closed = False

    @property
    def now(self) -> int:
        return self._start + round(self._clock.boottime() * SECOND)

    async def call(self, request: Any) -> Any:
        self.asked += 1
        await self.answers.wait()
        if self.is_closed:
            raise StoreClosedError("nats://here")
        return SimpleNamespace(ts=rfc3339(self.now))


@pytest.fixture
def runtime() -> ManualRuntime:
    return manual_runtime()


async def test_it_is_the_servers_time_whatever_our_clock_shows(runtime: ManualRuntime) -> None:
    clock, servers = runtime.clock, Servers(runtime)
    servers.answers.set()
    time = StoreTime(servers, runtime)  # type: ignore[arg-type]  # what it uses of it
    for ahead in (0, HOUR, -HOUR, 24 * HOUR, 0):
        clock.set_wall(servers.now + ahead)
        await time.refresh("s")
        steady = time.steady()
        for after in (0, -24 * HOUR, HOUR):
            clock.set_wall(servers.now + after)
            clock.advance(20)
            assert time.now() == steady() == servers.now
    clock.set_wall(servers.now)
    asked = servers.asked
    await time.refresh("s")
    await time.refresh("s")
    assert servers.asked == asked + 1
    # Either may be wrong only for a moment.
    clock.set_wall(servers.now + HOUR)
    for _ in range(3):
        await time.refresh("s")
    assert servers.asked == asked + 4


async def test_while_one_asks_others_go_by_what_is_known(runtime: ManualRuntime) -> None:
    clock, servers = runtime.clock, Servers(runtime)
    servers.answers.set()
    time = StoreTime(servers, runtime)  # type: ignore[arg-type]  # what it uses of it
    await time.refresh("s")
    servers.answers.clear()
    clock.set_wall(servers.now + 24 * HOUR)
    asking = [asyncio.create_task(time.refresh("s")) for _ in range(2)]
    await asyncio.sleep(0)
    assert time.now() == time.steady()() == servers.now
    servers.answers.set()
    await asyncio.gather(*asking)
    assert time.now() == servers.now


@pytest.mark.parametrize("is_closed", [True, False])
async def test_without_an_answer_it_is_our_own_time(runtime: ManualRuntime, is_closed: bool) -> None:
    clock, servers = runtime.clock, Servers(runtime)
    servers.is_closed = is_closed
    if is_closed:
        servers.answers.set()
    time = StoreTime(servers, runtime)  # type: ignore[arg-type]  # what it uses of it
    assert time.now() == clock.now()
    asking = asyncio.create_task(time.refresh("s"))
    await asyncio.sleep(0)
    clock.advance(2)
    await asking
    assert time.now() == clock.now()
