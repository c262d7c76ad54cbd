"""The mark after the initial values is sent even if the rest of them vanished before it came."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

import pelton
from pelton.api import ConsumerConfig, Delivered
from pelton.buckets import bucket
from pelton.jet.message_source import OrderedReader, Pushed


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


class Reader(OrderedReader):
    """Three stored messages, of which the last two expire before they are delivered."""

    async def _begin(self) -> Pushed:
        self._pending = 3
        return Pushed(self._backend, ConsumerConfig(), self._stream)

    async def _in_order(self, pushed: Pushed) -> AsyncGenerator[Delivered | None, None]:
        yield delivered(1, 2)
        yield None
        yield None
        yield delivered(4, 0)

    async def _is_through(self) -> bool:
        return True


async def test_silence_ends_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "OrderedReader", Reader)
    async with pelton.open("memory:") as jet:
        following = bucket.follow(jet, "KV_cars", ["$KV.cars.>"])
        seen = [await anext(following) for _ in range(3)]
        await following.aclose()
    assert [one and one.seq for one in seen] == [1, None, 4]
