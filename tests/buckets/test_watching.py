"""The mark after the initial values is sent even if the rest of them vanished before it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import pelton
from pelton.api import Delivered
from pelton.buckets import watching


def delivered(seq: int, pending: int) -> Delivered:
    return Delivered(
        subject=f"$KV.cars.{seq}",
        seq=seq,
        time_ns=0,
        headers=None,
        data=b"",
        consumer_seq=seq,
        num_delivered=1,
        num_pending=pending,
        stream="KV_cars",
        consumer="c",
    )


class Reader:
    """Three stored messages, of which the last two expire before they are delivered."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def begin(self) -> int:
        return 3

    async def follow(self) -> AsyncGenerator[Delivered | None, None]:
        yield delivered(1, 2)
        yield None
        yield None
        yield delivered(4, 0)

    async def is_through(self) -> bool:
        return True

    async def close(self) -> None:
        pass


async def test_silence_ends_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "OrderedReader", Reader)
    async with pelton.open("memory:") as jet:
        seen = [one and one.seq async for one in watching.followed(jet, "KV_cars", ["$KV.cars.>"])]
    assert seen == [1, None, 4]


async def test_a_reader_tells_of_silence() -> None:
    from pelton.jet.ordered import OrderedReader

    async with pelton.open("memory:") as jet:
        await jet.create_stream("S", subjects=["s"])
        await jet.publish("s")
        reader = OrderedReader(jet.backend, jet.runtime, "S", heartbeat=0.1)
        following = reader.follow()
        async with asyncio.timeout(20):
            assert (first := await anext(following)) is not None
            assert first.seq == 1
            assert await anext(following) is None
        await following.aclose()
