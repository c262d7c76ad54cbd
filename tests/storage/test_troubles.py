"""What slows a store down, or damages it: counted, told as an event, logged once, and in the metrics."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

import pelton
from pelton import metrics
from pelton.api import MessageQuarantined, SlowSync, WriterBusy
from pelton.storage import committer
from tests.storage.stores import raw


async def events_of(jet: pelton.Jet) -> pelton.Stream:
    return await jet.create_stream("events", subjects=["$JS.EVENT.ADVISORY.STORE.>", "$JS.EVENT.ADVISORY.STREAM.>"])


async def told(jet: pelton.Jet, subject: str) -> pelton.Event | None:
    """Return the last event of a subject, after a write that tells what is left to tell."""
    await jet.publish("s.told")
    stored = await (await jet.stream("events")).get_last_message(subject)
    return pelton.decode_event(stored.data)


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_slow_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await events_of(jet)
        assert await jet.backend.to_embedded("").troubles() == pelton.api.backend.StoreTroubles()
        monkeypatch.setattr(committer, "SLOW_SYNC_S", 0.0)
        for _ in range(3):
            await jet.publish("s.a")
        event = await told(jet, "$JS.EVENT.ADVISORY.STORE.SLOW_SYNC")
        found = await jet.backend.to_embedded("").troubles()
        text, _ = await metrics.metrics_text(jet)
    assert isinstance(event, SlowSync)
    assert event.store == os.path.realpath(path)
    assert found.slow_syncs >= 3
    assert found.slowest_sync > 0
    assert b"pelton_store_slow_syncs_total " in text
    # Each is counted, and one is told.
    [warning] = warnings(caplog)
    assert (warning.name, vars(warning)["store"]) == ("pelton.storage", os.path.realpath(path))
    assert "a sync to disk took" in warning.getMessage()


async def test_a_busy_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.pelton"
    monkeypatch.setattr(committer, "LONG_WAIT_S", 0.0)
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await events_of(jet)
        with raw(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            publish = asyncio.create_task(jet.publish("s.a"))
            for _ in range(10):
                await asyncio.sleep(0)
            connection.execute("COMMIT")
        await publish
        event = await told(jet, "$JS.EVENT.ADVISORY.STORE.WRITER_BUSY")
        found = await jet.backend.to_embedded("").troubles()
        text, _ = await metrics.metrics_text(jet)
    assert isinstance(event, WriterBusy)
    assert f"pelton_store_writer_waits_total {found.writer_waits:.1f}".encode() in text
    assert event.took.ns >= 0
    assert found.writer_waits >= 1
    assert [record.getMessage().split(":")[1][:7] for record in warnings(caplog)] == [" waited"]


async def test_a_damaged_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        await stream.create_consumer(durable_name="c")
        await events_of(jet)
        await jet.publish_batch([("s.a", b"1"), ("s.a", b"2"), ("s.a", b"3")])
    with raw(path) as connection:
        connection.execute("UPDATE m_1 SET data=x'00' WHERE seq=2")
    async with pelton.open(path) as jet, pelton.open(path, read_only=True) as look:
        consumer = await (await jet.stream("s")).consumer("c")
        assert [message.metadata.stream_seq for message in await consumer.fetch(3)] == [1, 3]
        event = await told(jet, "$JS.EVENT.ADVISORY.STREAM.MSG_QUARANTINED.s")
        assert (await look.backend.to_embedded("").troubles()).quarantined == 1
        text, _ = await metrics.metrics_text(look)
    assert isinstance(event, MessageQuarantined)
    assert (event.stream, event.stream_seq) == ("s", 2)
    assert b"pelton_store_quarantined_messages 1.0" in text
    [record] = warnings(caplog)
    assert (record.name, vars(record)["stream"], vars(record)["seq"]) == ("pelton.consumers", "s", 2)
    assert vars(record)["consumer"] == "c"
