"""How the driver loads staged files, without Spark."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pelton
from pelton.engine.bulk import StagedWriter
from pelton.spark.columns import pack
from pelton.spark.options import StoreOptions
from pelton.spark.write import writer
from pelton.spark.write.staging import BatchId
from pelton.spark.write.writer import load

ROWS = 20_000
PAYLOAD = bytes(1000)


class Later:
    """An executor that does nothing before it is told to, or waited for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, call: Callable[..., Any], *args: Any) -> "Future[None]":
        done: Future[None] = Future()
        if call is writer._nothing:
            self.run()
            done.set_result(None)
        else:
            self.waiting.append((call, args))
        return done

    def run(self) -> None:
        while self.waiting:
            call, args = self.waiting.pop(0)
            call(*args)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[Later]:
    later = Later()
    monkeypatch.setattr(writer, "_closing", later)
    yield later
    later.run()


def store(path: Path, key: str | None = None) -> StoreOptions:
    with pelton.sync.open(path, key=key) as jet:
        jet.create_stream("orders", subjects=["orders.>"])
    return StoreOptions(str(path), is_cluster=False, key=key)


def stage(path: Path, rows: int = ROWS, key: str | None = None) -> list[str]:
    subjects = pa.array([f"orders.{n % 10}" for n in range(rows)])
    packed = pack(subjects, pa.array([PAYLOAD] * rows, pa.binary()))
    assert packed is not None
    with StagedWriter(str(path), key) as writer:
        writer.add_packed(packed)
    return [str(path)]


def held(path: Path, key: str | None = None) -> int:
    with pelton.sync.open(path, key=key) as jet:
        return int(jet.stream("orders").info().state.messages)


@pytest.mark.parametrize("key", [None, "secret"])
def test_a_long_log_is_folded_after_the_answer(tmp_path: Path, later: Later, key: str | None) -> None:
    path = tmp_path / "s.pelton"
    options = store(path, key)
    before = path.stat().st_size
    load(options, "orders", stage(tmp_path / "file", key=key), None)
    assert path.stat().st_size == before
    assert (tmp_path / "s.pelton-wal").stat().st_size > ROWS * len(PAYLOAD)
    # The data on disk at the reply is sufficient.
    (tmp_path / "copy").mkdir()
    for name in ("s.pelton", "s.pelton-wal"):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    assert held(tmp_path / "copy" / "s.pelton", key) == ROWS
    later.run()
    assert path.stat().st_size > ROWS * len(PAYLOAD)
    assert not (tmp_path / "s.pelton-wal").exists()
    assert held(path, key) == ROWS


def test_others_read_and_write_meanwhile_and_the_next_load_waits(tmp_path: Path, later: Later) -> None:
    path = tmp_path / "s.pelton"
    options, files = store(path), stage(tmp_path / "file")
    load(options, "orders", files, BatchId("query", 0))
    with pelton.sync.open(path) as jet:
        assert jet.publish("orders.1", b"").seq == ROWS + 1
    assert len(later.waiting) == 1
    assert load(options, "orders", files, BatchId("query", 0)) is False
    assert load(options, "orders", files, BatchId("query", 1)) is True
    assert len(later.waiting) == 1
    later.run()
    assert held(path) == 2 * ROWS + 1
    assert pelton.verify(path) == []


def test_a_store_that_others_have_open_is_folded_as_well(tmp_path: Path, later: Later) -> None:
    path = tmp_path / "s.pelton"
    options = store(path)
    with pelton.sync.open(path) as jet:
        load(options, "orders", stage(tmp_path / "file"), None)
        later.run()
        assert path.stat().st_size > ROWS * len(PAYLOAD)
        assert jet.stream("orders").info().state.messages == ROWS


def test_what_is_small_is_closed_at_once(tmp_path: Path, later: Later) -> None:
    options = store(tmp_path / "s.pelton")
    load(options, "orders", stage(tmp_path / "file", 10), None)
    assert not later.waiting
    assert not (tmp_path / "s.pelton-wal").exists()


def test_a_load_that_fails_is_told_before_the_store_is_closed(tmp_path: Path, later: Later) -> None:
    options = store(tmp_path / "s.pelton")
    files = stage(tmp_path / "file")
    os.truncate(files[0], os.path.getsize(files[0]) - 65_536)
    with pytest.raises(pelton.StoreError, match=r"malformed|damaged"):
        load(options, "orders", files, None)
    later.run()
    assert held(tmp_path / "s.pelton") == 0
