"""Streams of real servers: the same rows, by direct gets and by consumers, and the same batches after a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pelton
from tests.kit.nats_server import NatsCluster, nats_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running.url


def fill(url: str, stream: str, count: int, **config: Any) -> None:
    with pelton.sync.open(url) as jet:
        jet.create_stream(stream, subjects=[f"{stream}.>"], **config)
        jet.publish_batch([(f"{stream}.{n % 3}", b"payload %d" % n, {"N": str(n)}) for n in range(count)])


def read(spark: SparkSession, url: str, stream: str, **options: object) -> DataFrame:
    return spark.read.format("pelton").options(servers=url, stream=stream, **options).load()


@pytest.mark.parametrize("direct", [True, False])
def test_rows_are_the_messages(spark: SparkSession, server: str, direct: bool) -> None:
    stream = f"rows{direct}"
    fill(server, stream, 2500, allow_direct=direct)
    rows = read(spark, server, stream, minPartitions=2).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(1, 2501))
    assert all(bytes(row.data) == b"payload %d" % (row.sequence - 1) for row in rows)
    assert all(row.headers["N"] == [str(row.sequence - 1)] for row in rows)
    assert all(row.subject == f"{stream}.{(row.sequence - 1) % 3}" for row in rows)
    filtered = read(spark, server, stream, subjects=f"{stream}.1,{stream}.2", startingSequence=10, endingSequence=20)
    assert [row.sequence for row in filtered.collect()] == [11, 12, 14, 15, 17, 18, 20]


def test_a_work_queue_is_read_without_being_in_its_way(spark: SparkSession, server: str) -> None:
    fill(server, "queued", 30, retention="workqueue")
    rows = read(spark, server, "queued", subjects="queued.0").collect()
    assert [row.sequence for row in rows] == list(range(1, 31, 3))
    with pelton.sync.open(server) as jet:
        assert jet.stream("queued").info().state.messages == 30


def test_a_purge_of_the_front_is_an_error_or_noted(spark: SparkSession, server: str) -> None:
    fill(server, "purged", 50)
    with pelton.sync.open(server) as jet:
        jet.stream("purged").purge(seq=31)
    with pytest.raises(PySparkException, match="the sequences 5 to 30 are gone"):
        read(spark, server, "purged", startingSequence=5).collect()
    kept = read(spark, server, "purged", startingSequence=5, failOnDataLoss="false").collect()
    assert [row.sequence for row in kept] == list(range(31, 51))


def test_a_query_on_three_servers_goes_on_where_it_was(
    spark: SparkSession, three_servers: NatsCluster, tmp_path: Path
) -> None:
    batches: dict[int, list[int]] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        rows = sorted(row.sequence for row in frame.select("sequence").collect())
        assert batches.get(batch, rows) == rows
        batches[batch] = rows

    def drain(url: str) -> None:
        options = {"servers": url, "stream": "jobs", "consumer": "spark", "maxRowsPerTrigger": 100}
        writer = spark.readStream.format("pelton").options(**options).load().writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            query.awaitTermination(180)
        finally:
            query.stop()

    fill(three_servers.url, "jobs", 150, num_replicas=3, retention="workqueue", allow_direct=True)
    drain(three_servers.url)
    with pelton.sync.open(three_servers.url) as jet:
        jet.publish_batch([("jobs.0", b"")] * 70)
    drain(three_servers.url)
    with pelton.sync.open(three_servers.url) as jet:
        assert jet.stream("jobs").info().state.messages == 70
    assert sorted(seq for rows in batches.values() for seq in rows) == list(range(1, 221))
