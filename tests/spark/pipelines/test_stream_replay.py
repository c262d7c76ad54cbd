"""Archives and streams replayed to streams: the same messages, in their order, at their time."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import concat, lit, substring_index

import pelton
from pelton.spark import pipelines
from pelton.spark.pipelines import stream_replay
from tests.spark.pipelines.test_lake_archive import fill

Stored = list[tuple[str, bytes, Any]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "s.pelton", "orders", 30)
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("again", subjects=["again.>"])
    return tmp_path / "s.pelton"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Advance the clock of replays only by their pauses; return the pauses."""
    paused: list[float] = []
    monkeypatch.setattr(stream_replay, "stopwatch", lambda: sum(paused))
    monkeypatch.setattr(stream_replay, "pause", paused.append)
    return paused


def stored(store: Path | str, stream: str) -> Stored:
    with pelton.sync.open(store) as jet:
        handle = jet.stream(stream)
        last = handle.info().state.last_seq
        messages = [handle.get_message(seq) for seq in range(1, last + 1)]
    return [(message.subject, message.data, message.headers.get("n")) for message in messages]


def read(spark: SparkSession, store: Path) -> DataFrame:
    return spark.read.format("pelton").options(path=str(store), stream="orders", rowsPerPartition=10).load()


def rename(frame: DataFrame) -> DataFrame:
    return frame.withColumn("subject", concat(lit("again."), substring_index("subject", ".", -1)))


def test_an_archive_is_replayed_whole_and_in_order(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "lake")
    pipelines.append(read(spark, store), target)
    archived = pipelines.read_archive(spark, target)
    for expected in ((30, 0), (0, 30)):
        done = pipelines.replay(archived, "again", write_id="r", transform=rename, path=str(store))
        assert done == expected
    wanted = [(subject.replace("orders", "again"), data, n) for subject, data, n in stored(store, "orders")]
    assert stored(store, "again") == wanted


def test_a_replay_at_a_rate_goes_on_where_it_stopped(spark: SparkSession, store: Path, waits: list[float]) -> None:
    arguments: dict[str, Any] = {"write_id": "r", "rate": 10, "transform": rename, "path": str(store)}

    def stop(done: int, total: int) -> None:
        assert total == 30
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipelines.replay(read(spark, store), "again", progress=stop, **arguments)
    assert [data for _, data, _ in stored(store, "again")] == [f"{n}".encode() for n in range(20)]
    assert pipelines.replay(read(spark, store), "again", **arguments) == (10, 20)
    assert [data for _, data, _ in stored(store, "again")] == [f"{n}".encode() for n in range(30)]
    assert waits == [1.0]


def test_a_replay_keeps_the_pace_of_the_time(spark: SparkSession, store: Path, waits: list[float]) -> None:
    rows = spark.range(0, 4).selectExpr(
        "'orders' AS stream", "id + 1 AS sequence", "concat('again.', id) AS subject", "string(id) AS data",
        "timestamp_seconds(1700000000 + id * id * 30) AS time",
    )  # fmt: skip
    steps: list[int] = []
    pipelines.replay(rows, "again", write_id="p", pace=60, path=str(store), progress=lambda done, _: steps.append(done))
    # 0, 30, 120, 270 seconds are 0, 0.5, 2, 4.5 at sixty times the pace.
    assert steps == [0, 2, 3, 4]
    assert waits == [2.0, 2.0]
    assert [data for _, data, _ in stored(store, "again")] == [b"0", b"1", b"2", b"3"]


def test_what_cannot_be_replayed_is_told(spark: SparkSession, store: Path) -> None:
    rows = read(spark, store)
    with pytest.raises(pelton.ConfigError, match="keep one"):
        pipelines.replay(rows, "again", write_id="r", rate=1, pace=1, path=str(store))
    with pytest.raises(pelton.ConfigError, match="more than 0"):
        pipelines.replay(rows, "again", write_id="r", rate=0, path=str(store))
    with pytest.raises(pelton.ConfigError, match="missing: time"):
        pipelines.replay(rows.drop("time"), "again", write_id="r", path=str(store))
