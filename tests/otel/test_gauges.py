"""How a store goes, as metrics of OpenTelemetry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pelton
import pelton.otel
from tests.otel.recording import Recording


async def test_a_store_is_observed(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await orders.create_consumer(durable_name="shipping")
        await jet.publish_batch([("orders.1", b"")] * 3)
        queue = await jet.queue("garage")
        await queue.enqueue("repair", car="a")
        pelton.otel.observe(jet, meter_provider=recording.meters)
        points = await asyncio.to_thread(recording.points)
        assert ({"stream_name": "orders"}, 3) in points["jetstream_stream_total_messages"]
        assert ({"stream_name": "orders", "consumer_name": "shipping"}, 3) in points["jetstream_consumer_num_pending"]
        assert ({"queue": "garage", "state": "pending"}, 1) in points["pelton_queue_jobs"]
        # A collection on the loop itself has the values of the last one.
        assert recording.points()["pelton_queue_jobs"] == points["pelton_queue_jobs"]


def test_a_store_without_await_is_observed(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "shop.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        pelton.otel.observe(jet, path=str(path), meter_provider=recording.meters)
        [(labels, size)] = recording.points()["pelton_store_file_bytes"]
    assert labels == {}
    assert size > 0


async def test_a_closed_store_is_not_observed(
    tmp_path: Path, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        pelton.otel.observe(jet, meter_provider=recording.meters)
    points = await asyncio.to_thread(recording.points)
    assert not any(points.values())
    assert not caplog.records
