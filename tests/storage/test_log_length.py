"""A WAL that a reader keeps from being checkpointed: reported once, and truncated when the reader is gone."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

import pelton
from pelton import metrics
from pelton.api import CheckpointBlocked
from pelton.engine.salvage import recount
from pelton.storage import wal
from tests.kit.faults import FaultySync
from tests.storage.stores import a_store, open_engine, raw

_FOLDED_AT, _TOLD_AT = 50, 200
_LIMIT = 400_000
_RESERVED = 1 << 20


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", _FOLDED_AT)
    monkeypatch.setattr(wal, "TOO_LONG_PAGES", _TOLD_AT)
    monkeypatch.setattr(wal, "LOG_LIMIT", _LIMIT)


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum("its log has grown" in record.message for record in caplog.records)


async def test_a_log_that_cannot_be_folded_is_told_once_and_cut_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pelton")
    path = tmp_path / "a.pelton"
    log = Path(f"{path}-wal")
    await a_store(path)
    jet = open_engine(path, sync_file=FaultySync())
    for times in (1, 2):
        with raw(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchall()
            while log.stat().st_size < 3 * _RESERVED:
                await jet.publish("s.1", bytes(20_000))
            assert warnings(caplog) == times
            reader.execute("COMMIT")
        # One of the next writes checkpoints it, the one after that starts it again.
        for _ in range(12):
            await jet.publish("s.1", bytes(20_000))
        assert log.stat().st_size <= _LIMIT + _RESERVED
        # It is extended ahead of the writes as before.
        for _ in range(40):
            await jet.publish("s.1", bytes(20_000))
    await jet.close()
    assert recount(str(path)) == []
    assert not log.exists()


async def test_a_log_is_cut_with_the_first_writes_after_its_reader_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 1000)
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with open_engine(path, sync_file=FaultySync()) as jet:
        with raw(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchall()
            while jet.backend._db.log_bytes < 9 * _RESERVED:
                await jet.publish("s.1", bytes(100_000))
            reader.execute("COMMIT")
        for _ in range(20):
            await jet.publish("s.1", bytes(20_000))
        assert jet.backend._db.log_bytes < _RESERVED
        assert Path(f"{path}-wal").stat().st_size <= _LIMIT + _RESERVED


async def test_a_log_of_twice_the_length_waits_for_its_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    fold = wal.Checkpointer.fold
    left: list[int | None] = []

    def watched(self: wal.Checkpointer, mode: str = "PASSIVE") -> int | None:
        ending = threading.Thread(target=reader.execute, args=("ROLLBACK",))
        if mode == "RESTART":
            ending.start()
        left.append(fold(self, mode))
        if mode == "RESTART":
            ending.join()
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchall()
        return left[-1]

    monkeypatch.setattr(wal.Checkpointer, "fold", watched)
    with raw(path) as reader:
        async with open_engine(path, sync_file=FaultySync()) as jet:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchall()
            lengths = []
            for _ in range(100):
                await jet.publish("s.1", bytes(20_000))
                lengths.append(jet.backend._db.log_bytes)
            # Somebody holds a snapshot at all times but for the moments in which it is waited for.
            assert max(lengths) < 3 * _FOLDED_AT * wal.PAGE_SIZE
            assert left.count(0) > 2
        reader.execute("ROLLBACK")
    assert recount(str(path)) == []


async def test_a_log_that_cannot_be_folded_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with open_engine(path, sync_file=FaultySync()) as jet:
        events = await jet.create_stream("events", subjects=["$JS.EVENT.ADVISORY.STORE.>"])
        with raw(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchall()
            for _ in range(100):
                await jet.publish("s.1", bytes(20_000))
            assert (await events.info()).state.messages == 1
        text, _ = await metrics.metrics_text(jet)
        assert b"pelton_store_checkpoints_blocked_total 1.0" in text
        event = pelton.decode_event((await events.get_message(1)).data)
        assert isinstance(event, CheckpointBlocked)
        assert event.store == os.path.realpath(path)
        assert event.log_bytes >= _TOLD_AT * wal.PAGE_SIZE


async def test_a_log_that_is_folded_in_time_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, sync="off") as jet:
        await jet.create_stream("s")
        for _ in range(200):
            await jet.publish("s", bytes(20_000))
    assert warnings(caplog) == 0
