"""A server notes how its stores go: with a queue on which nobody works, and a consumer that nobody reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pelton
from pelton.api import ConsumerList, StreamInfoRequest
from pelton.jet.backlogs import MINUTE, stream_trend
from pelton.queue.scan import trend_points
from pelton.server import Server, ServerSettings, StoreSettings
from pelton.server.settings import Endpoint
from pelton.testing import manual_runtime


async def test_there_are_points_without_any_worker(tmp_path: Path) -> None:
    runtime, path = manual_runtime(), str(tmp_path / "a.pelton")
    stores = {"$G": StoreSettings(path=path)}
    server = Server(ServerSettings(endpoints=(Endpoint(port=-1),), stores=stores), runtime)
    async with pelton.open(path, runtime=runtime) as jet:
        garage = await jet.queue("garage")

        @garage.job
        async def repair() -> None: ...

        orders = await jet.create_stream("orders", subjects=["orders"])
        await orders.create_consumer(durable_name="packer")
        await server.start()
        try:
            while len(points := await trend_points(jet, "garage", 0)) < 3:
                await repair.enqueue()
                await jet.publish("orders", b"x")
                runtime.clock.advance(5)
                await asyncio.sleep(0.001)
        finally:
            await server.close()
        info = await jet.backend.call(StreamInfoRequest(name="orders"))
        consumers = (await jet.backend.call(ConsumerList(stream="orders"))).consumers
        trend = await stream_trend(jet, info, consumers, runtime.clock.now() - 60 * MINUTE)
        assert trend is not None
        assert [one.minute for one in trend.backlogs["packer"]] == [one.minute for one in points]
        for depths in ([one.depth for one in points], [one.pending for one in trend.backlogs["packer"]]):
            assert 0 < depths[0] < depths[1] < depths[2]
