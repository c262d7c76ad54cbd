"""Archives of streams: each message exactly once, whatever fails."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import pelton
from pelton.spark import pipelines
from pelton.spark.pipelines import delta_table
from pelton.spark.pipelines.parquet_files import folder_of
from tests.spark.write.test_stream_writer import lose_last_commit


def fill(store: Path, stream: str, count: int, first: int = 0) -> None:
    with pelton.sync.open(store) as jet:
        if stream not in list(jet.stream_names()):
            jet.create_stream(stream, subjects=[f"{stream}.>"])
        for n in range(first, first + count):
            jet.publish(f"{stream}.{n % 3}", f"{n}".encode(), headers={"n": str(n)})


def follow(spark: SparkSession, store: Path, stream: str, **options: object) -> DataFrame:
    return spark.readStream.format("pelton").options(path=str(store), stream=stream, **options).load()


def kept(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.select("stream", "subject", "sequence", "time", "headers", "data", "size").collect()
    return sorted((*row[:4], str(row[4]), bytes(row[5]), row[6]) for row in rows)


def test_streams_are_archived_whole_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    store, target = tmp_path / "s.pelton", str(tmp_path / "lake")
    fill(store, "orders", 25)
    fill(store, "clicks", 5)
    frame = follow(spark, store, "orders,clicks", maxRowsPerTrigger=20)
    pipelines.archive(frame, target, checkpoint=str(tmp_path / "c")).awaitTermination()
    everything = spark.read.format("pelton").options(path=str(store), stream="orders,clicks").load()
    assert kept(pipelines.read_archive(spark, target)) == kept(everything)
    table = DeltaTable(target)
    assert table.metadata().partition_columns == ["date", "stream"]
    # The lake's own engine agrees about rows, partitions and statistics.
    assert table.count() == 30
    assert {action["stream"] for action in table.partitions()} == {"orders", "clicks"}
    first = pipelines.read_archive(spark, target, version=1).count()
    assert 0 < first <= 20


def test_a_batch_that_spark_forgot_is_not_archived_again(spark: SparkSession, tmp_path: Path) -> None:
    store, target, checkpoint = tmp_path / "s.pelton", str(tmp_path / "lake"), tmp_path / "c"
    fill(store, "orders", 20)
    for _ in range(2):
        pipelines.archive(follow(spark, store, "orders"), target, checkpoint=str(checkpoint)).awaitTermination()
        lose_last_commit(checkpoint)
    fill(store, "orders", 5, first=20)
    pipelines.archive(follow(spark, store, "orders"), target, checkpoint=str(checkpoint)).awaitTermination()
    assert sorted(row.sequence for row in pipelines.read_archive(spark, target).collect()) == list(range(1, 26))


def test_a_driver_that_dies_around_the_transaction_archives_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target, checkpoint = tmp_path / "s.pelton", str(tmp_path / "lake"), str(tmp_path / "c")
    fill(store, "orders", 20)
    commit = delta_table.LakeTable.commit

    def dies_before(*_: Any) -> bool:
        raise OSError("gone before")

    def dies_after(*arguments: Any) -> bool:
        commit(*arguments)
        raise OSError("gone after")

    for death in (dies_before, dies_after):
        monkeypatch.setattr(delta_table.LakeTable, "commit", death)
        query = pipelines.archive(follow(spark, store, "orders"), target, checkpoint=checkpoint)
        with pytest.raises(Exception, match="gone"):
            query.awaitTermination()
    monkeypatch.undo()
    pipelines.archive(follow(spark, store, "orders"), target, checkpoint=checkpoint).awaitTermination()
    assert sorted(row.sequence for row in pipelines.read_archive(spark, target).collect()) == list(range(1, 21))
    # The first attempt's files are in the folder, but not in the table.
    assert len(list(Path(target).rglob("*.parquet"))) > len(DeltaTable(target).file_uris())


def test_parquet_has_each_message_once_too(spark: SparkSession, tmp_path: Path) -> None:
    store, target, checkpoint = tmp_path / "s.pelton", str(tmp_path / "lake"), tmp_path / "c"
    fill(store, "orders", 20)
    for _ in range(2):
        query = pipelines.archive(follow(spark, store, "orders"), target, checkpoint=str(checkpoint), form="parquet")
        query.awaitTermination()
        lose_last_commit(checkpoint)
    archived = pipelines.read_archive(spark, target, form="parquet")
    assert sorted(row.sequence for row in archived.collect()) == list(range(1, 21))
    assert {"date", "stream"} <= set(archived.columns)


def test_a_frame_is_appended_once_a_version(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "lake")
    rows = "SELECT 'a+b%c d' AS stream, timestamp'2024-01-01T23:30:00Z' AS time, id AS n FROM range(3)"
    assert pipelines.append(spark.sql(rows), target, write_id="w", version=1)
    assert not pipelines.append(spark.sql(rows), target, write_id="w", version=1)
    assert not pipelines.append(spark.sql(rows), target, write_id="w", version=0)
    assert pipelines.append(spark.sql(rows), target, write_id="w", version=2)
    archived = pipelines.read_archive(spark, target).collect()
    assert sorted(row.n for row in archived) == [0, 0, 1, 1, 2, 2]
    assert {(row.stream, str(row.date)) for row in archived} == {("a+b%c d", "2024-01-01")}
    with pytest.raises(pelton.ConfigError, match="select the same"):
        pipelines.append(spark.sql(rows.replace("id AS n", "id AS m")), target)


def test_what_cannot_be_archived_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(pelton.ConfigError, match="time is missing"):
        pipelines.append(spark.sql("SELECT 'a' AS stream"), str(tmp_path))
    with pytest.raises(pelton.ConfigError, match="readStream"):
        pipelines.archive(spark.range(1), str(tmp_path), checkpoint=str(tmp_path))
    with pytest.raises(pelton.ConfigError, match="not a Delta table"):
        pipelines.read_archive(spark, str(tmp_path / "none"))


def test_folders_are_named_as_hive_does() -> None:
    assert folder_of("2024-01-01", "orders") == "date=2024-01-01/stream=orders"
    assert folder_of("2024-01-01", "a%b=c") == "date=2024-01-01/stream=a%25b%3Dc"
