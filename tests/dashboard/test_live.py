"""Viewers are sent what changes, all from one look at the store."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pelton
from pelton import dashboard
from pelton.dashboard.pictures import LagHistory, LagSample, Snapshots
from pelton.testing import manual_runtime


def texts(event: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(event.decode().split("data: ", 1)[1])
    return found


async def test_all_viewers_share_one_picture_until_it_is_old(tmp_path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(tmp_path / "a.pelton", runtime=runtime) as jet:
        await jet.create_stream("orders", subjects=["orders"])
        snapshots = Snapshots(jet, 2.0)
        first, second = await asyncio.gather(snapshots.latest(), snapshots.latest())
        assert first is second
        await jet.publish("orders", b"x")
        assert await snapshots.latest() is first
        runtime.clock.advance(2)
        third = await snapshots.latest()
        assert third is not first
        assert (third.texts["stream.orders.messages"], third.texts["stream.orders.rate"]) == ("1", "0.5")
        changed = texts(third.change_event)
        assert changed.keys() >= {"stream.orders.messages", "store.messages"}
        assert "store.streams" not in changed
        assert "store.streams" in texts(third.whole_event)
        snapshots.forget()
        assert (await snapshots.latest()).number == third.number + 1


async def test_the_lag_of_a_consumer_is_drawn_over_time(tmp_path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(tmp_path / "a.pelton", runtime=runtime) as jet:
        orders = await jet.create_stream("orders", subjects=["orders"])
        await orders.create_consumer(durable_name="packer")
        snapshots = Snapshots(jet, 2.0)
        for _ in range(11):
            await jet.publish("orders", b"x")
            picture = await snapshots.latest()
            runtime.clock.advance(2)
    assert picture.texts["consumer.orders.packer.lag_line"] == "58.8,10.8 59.8,2.64 60,1"
    assert picture.texts["consumer.orders.packer.lag_was"] == "was 5 12 s ago"


def test_lags_are_kept_for_ten_minutes_and_not_of_consumers_that_are_gone() -> None:
    history = LagHistory()
    for second in range(0, 1000, 2):
        history.add(second, [LagSample("a", 0), LagSample("b", second)][: 2 if second < 500 else 1])
    assert (history.points("b"), history.text("b")) == ("", "")
    assert len(history.points("a").split()) == 60
    assert history.text("a") == "was 0 10 min ago"


async def test_events_follow_each_other(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("orders", subjects=["orders"])
        async with aclosing(Snapshots(jet, 0.01).events()) as events:  # type: ignore[type-var]
            assert texts(await anext(events))["stream.orders.messages"] == "0"
            await jet.publish("orders", b"x")
            assert texts(await anext(events))["stream.orders.messages"] == "1"


async def test_the_events_are_a_stream_of_events_that_ends_with_its_viewer(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("orders", subjects=["orders"])
        sent: list[Any] = []
        is_gone = asyncio.Event()

        async def receive() -> Any:
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body"):
                is_gone.set()

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/events",
            "headers": [],
            "query_string": b"",
            "root_path": "",
        }
        async with asyncio.timeout(30):
            await dashboard.app(jet)(scope, receive, send)
        headers = dict(sent[0]["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert headers[b"cache-control"] == b"no-store"
        assert texts(sent[1]["body"])["store.streams"] == "1"
