"""Streams of three servers, replicated on all of them: the same rows, even if a driver dies, and a server."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import pelton
from tests.kit.nats_server import NatsCluster
from tests.spark.driver import killing, wait_until
from tests.spark.write.test_cluster_writer import rows
from tests.spark.write.test_stream_writer import feed, lose_last_commit
from tests.spark.write.test_write_crash import LINES, sorted_rows
from tests.spark.write.write_role import write

Row = tuple[int, str, bytes]


@pytest.fixture
def servers(three_servers: NatsCluster) -> NatsCluster:
    with pelton.sync.open(three_servers.url) as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_direct=True, num_replicas=3)
    return three_servers


def leader(servers: NatsCluster) -> str:
    with pelton.sync.open(servers.url) as jet:
        cluster = jet.stream("orders").info().cluster
    assert cluster is not None
    return str(cluster.leader)


def kill(servers: NatsCluster, name: str) -> None:
    """Kill the server with this name."""
    [found] = [server for server in servers.servers if server.name == name]
    found.kill()


def numbered(found: list[tuple[str, bytes]], first: int = 1) -> list[Row]:
    return [(seq, subject, data) for seq, (subject, data) in enumerate(found, first)]


def collected(frame: DataFrame) -> list[Row]:
    found = frame.select("sequence", "subject", "data").collect()
    return sorted((row.sequence, row.subject, bytes(row.data)) for row in found)


def test_a_read_and_a_query_go_on_when_the_leader_dies(
    spark: SparkSession, servers: NatsCluster, tmp_path: Path
) -> None:
    messages = [(f"orders.{n % 3}", b"%d" % n) for n in range(200)]
    with pelton.sync.open(servers.url) as jet:
        jet.publish_batch(messages)
    reading = {"servers": servers.url, "stream": "orders", "minPartitions": 2}
    assert collected(spark.read.format("pelton").options(**reading).load()) == numbered(messages)
    batches: dict[int, list[Row]] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        if batch == 1 and not batches.get(1):
            kill(servers, leader(servers))
        found = collected(frame)
        assert batches.get(batch, found) == found, "a batch that is read again is the same"
        batches[batch] = found

    def drain() -> None:
        frame = spark.readStream.format("pelton").options(**reading, maxRowsPerTrigger=50).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    drain()
    lose_last_commit(tmp_path / "checkpoint")
    more = [("orders.new", b"%d" % n) for n in range(30)]
    with pelton.sync.open(servers.url) as jet:
        jet.publish_batch(more)
    drain()
    assert sorted(row for found in batches.values() for row in found) == numbered(messages + more)
    assert collected(spark.read.format("pelton").options(**reading).load()) == numbered(messages + more)


def test_a_sink_whose_driver_and_leader_die_before_the_commit_stores_each_row_once(
    spark: SparkSession, servers: NatsCluster, tmp_path: Path
) -> None:
    feed(tmp_path / "in", "1", LINES)
    arguments = (tmp_path, "servers", servers.url, "held")
    with killing("tests.spark.write.write_role", *arguments) as driver:
        # One task is done, the other has not started: so the batch is not done.
        wait_until(lambda: len(rows(servers.url)) > len(LINES) // 3, driver)
    (tmp_path / "go").touch()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    kill(servers, leader(servers))
    write(spark, tmp_path, "servers", servers.url)
    assert sorted(rows(servers.url)) == sorted_rows()
    lose_last_commit(tmp_path / "checkpoint")
    feed(tmp_path / "in", "2", ["the last one"])
    write(spark, tmp_path, "servers", servers.url)
    assert sorted(rows(servers.url)) == sorted([*sorted_rows(), ("orders.12", b"the last one")])
