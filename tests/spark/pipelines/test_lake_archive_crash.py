"""A driver that archives is killed between its files and the table, and between the table and the checkpoint."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import pelton
from pelton.spark import pipelines
from tests.kit.nats_server import NatsCluster
from tests.spark.driver import killing, wait_until
from tests.spark.pipelines.archive_role import ROWS
from tests.spark.pipelines.test_lake_archive import kept
from tests.spark.write.test_stream_writer import lose_last_commit

ROLE = "tests.spark.pipelines.archive_role"
POINTS = ("before", "after")


def fill(address: str | Path, count: int, **config: object) -> None:
    """Store messages of several subjects, some with headers."""
    with pelton.sync.open(address) as jet:
        if "orders" not in list(jet.stream_names()):
            jet.create_stream("orders", subjects=["orders.>"], allow_direct=True, **config)
        jet.publish_batch(
            [(f"orders.{n % 3}", b"%d" % n, {"n": str(n)}) if n % 4 else (f"orders.{n % 3}", b"") for n in range(count)]
        )


def kill_at(home: Path, place: str, value: str, point: str, number: int) -> None:
    """Run a driver up to a point of a batch, and kill it there."""
    with killing(ROLE, home, place, value, point, number) as driver:
        wait_until((home / f"{point}-{number}").exists, driver)
    assert not (home / "checkpoint" / "commits" / str(number)).exists()


def sequences(home: Path) -> list[int]:
    return sorted(DeltaTable(str(home / "lake")).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist())


def finish(spark: SparkSession, home: Path, place: str, value: str) -> None:
    """Archive what is left."""
    frame = spark.readStream.format("pelton").options(**{place: value}, stream="orders").load()
    pipelines.archive(frame, str(home / "lake"), checkpoint=str(home / "checkpoint")).awaitTermination()


def check(spark: SparkSession, home: Path, place: str, value: str) -> None:
    """Check that the archive equals the stream, row for row."""
    stream = spark.read.format("pelton").options(**{place: value}, stream="orders").load()
    assert kept(pipelines.read_archive(spark, str(home / "lake"))) == kept(stream)


def test_each_message_is_archived_once_whenever_the_driver_is_killed(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """``--kills`` sets how often it is killed: one twentieth of that."""
    store = str(tmp_path / "s.pelton")
    kills = max(int(request.config.getoption("--kills")) // 20, 2)
    fill(store, ROWS * (kills + 2))
    for round in range(kills):
        # The first batch succeeds, and then each is killed at both of its points in turn.
        point, number = POINTS[round % 2], 1 + round // 2
        kill_at(tmp_path, "path", store, point, number)
        done = number if point == "before" else number + 1
        assert sequences(tmp_path) == list(range(1, done * ROWS + 1))
    # Files that were written and not committed are in the folder, but not in the table.
    table = DeltaTable(str(tmp_path / "lake"))
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) > len(table.file_uris())
    finish(spark, tmp_path, "path", store)
    check(spark, tmp_path, "path", store)
    lose_last_commit(tmp_path / "checkpoint")
    fill(store, 5)
    finish(spark, tmp_path, "path", store)
    check(spark, tmp_path, "path", store)


def test_three_servers_are_archived_though_the_driver_and_one_of_them_die(
    all_kills: None, spark: SparkSession, three_servers: NatsCluster, tmp_path: Path
) -> None:
    fill(three_servers.url, 5 * ROWS, num_replicas=3)
    kill_at(tmp_path, "servers", three_servers.url, "before", 1)
    three_servers.servers[0].kill()
    finish(spark, tmp_path, "servers", three_servers.url)
    check(spark, tmp_path, "servers", three_servers.url)
    lose_last_commit(tmp_path / "checkpoint")
    finish(spark, tmp_path, "servers", three_servers.url)
    check(spark, tmp_path, "servers", three_servers.url)
