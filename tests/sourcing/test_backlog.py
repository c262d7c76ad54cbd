"""A source of a large stream is filled in many transactions, by any process that has the store open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pelton
from pelton.engine.salvage import recount

COUNT = 20_000


async def caught_up(stream: pelton.Stream) -> pelton.StreamInfo:
    while True:
        info = await stream.info()
        told = info.sources or [info.mirror]
        if all(source is not None and source.lag == 0 and source.active.ns >= 0 for source in told):
            return info
        await asyncio.sleep(0)


async def test_a_large_stream_is_carried_over_in_parts(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    async with pelton.open(path) as jet:
        await jet.create_stream("O", subjects=["o.>"])
        await jet.publish_batch([(f"o.{n % 7}", b"%d" % n) for n in range(COUNT)])
        stream = await jet.create_stream("S", sources=[{"name": "O"}])
        mirror = await jet.create_stream("M", mirror={"name": "O"})
        for each in (stream, mirror):
            info = await caught_up(each)
            assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (COUNT, 1, COUNT)
        assert (await stream.get_message(COUNT)).data == b"%d" % (COUNT - 1)
    assert recount(path) == []


async def test_another_opener_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    async with pelton.open(path) as jet:
        await jet.create_stream("O", subjects=["o.>"])
        await jet.publish_batch([(f"o.{n % 7}", b"%d" % n) for n in range(COUNT)])
        await jet.create_stream("S", sources=[{"name": "O"}])
    async with pelton.open(path) as jet:
        info = await caught_up(await jet.stream("S"))
        assert info.state.messages == COUNT
    assert recount(path) == []
