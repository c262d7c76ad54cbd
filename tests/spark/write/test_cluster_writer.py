"""Writes to a cluster: message ids prevent a repeated batch from being stored twice."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pelton
from tests.kit.nats_server import NatsCluster, NatsServer, nats_server
from tests.spark.write.test_stream_writer import feed, lose_last_commit, run
from tests.spark.write.test_write_crash import LINES, sorted_rows, start
from tests.spark.write.test_writer import numbers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
def servers(server: NatsServer) -> Iterator[str]:
    with pelton.sync.open(server.url) as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
        yield server.url
        for name in jet.stream_names():
            jet.delete_stream(name)


def rows(url: str, stream: str = "orders") -> list[tuple[str, bytes]]:
    with pelton.sync.open(url) as jet:
        handle, found = jet.stream(stream), []
        while batch := handle.get_messages(256, seq=found[-1].seq + 1 if found else 1):
            found += batch
    return [(message.subject, message.data) for message in found]


def to_cluster(servers: str, **more: object) -> dict[str, object]:
    return {"path": None, "servers": servers, **more}


def test_rows_become_messages_with_ids_and_a_write_that_is_repeated_changes_nothing(
    spark: SparkSession, servers: str
) -> None:
    for _ in range(2):
        frame = numbers(spark, 100).write.format("pelton").mode("append")
        frame.options(servers=servers, stream="orders", writeId="load").save()
        assert sorted(rows(servers)) == sorted((f"orders.{n % 7}", str(n).encode()) for n in range(100))


def test_buckets_and_queues(spark: SparkSession, servers: str) -> None:
    with pelton.sync.open(servers) as jet:
        jet.create_bucket("cars")
        jet.queue("garage")
        options = {"servers": servers}
        frame = spark.sql("SELECT 'a' AS key, 'red' AS value").write.format("pelton").mode("append")
        frame.options(**options, bucket="cars").save()
        jobs = spark.sql("SELECT 'a' AS car").write.format("pelton").mode("append")
        jobs.options(**options, queue="garage", job="paint").save()
        painted = []
        garage = jet.queue("garage")

        @garage.job  # type: ignore[untyped-decorator]  # of the blocking face
        def paint(car: str) -> None:
            painted.append(car)

        garage.work(until_empty=True, handle_signals=False)
        assert (painted, jet.bucket("cars").get("a").value) == (["a"], b"red")
        assert garage.counts().completed == 1


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_batch_that_spark_forgot_is_not_stored_again(
    spark: SparkSession, servers: str, tmp_path: Path, is_noted: bool
) -> None:
    feed(tmp_path / "in", "1", ["a", "b", "c"])
    run(spark, tmp_path, **to_cluster(servers))
    lose_last_commit(tmp_path / "checkpoint")
    if not is_noted:
        with pelton.sync.open(servers) as jet:
            jet.stream("SPARK_COMMITS").purge()
    feed(tmp_path / "in", "2", ["d"])
    run(spark, tmp_path, **to_cluster(servers))
    assert sorted(data for _, data in rows(servers)) == [b"a", b"b", b"c", b"d"]


def test_a_batch_that_comes_again_too_late_is_refused_unless_that_is_wanted(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    with pelton.sync.open(servers) as jet:
        jet.update_stream("orders", duplicate_window=0.1)
        # By the time the batch is repeated, its message ids are older than the stream's window.
        feed(tmp_path / "in", "1", ["a"])
        run(spark, tmp_path, **to_cluster(servers))
        lose_last_commit(tmp_path / "checkpoint")
        noted = jet.stream("SPARK_COMMITS").get_message(jet.stream("SPARK_COMMITS").info().state.last_seq)
        jet.publish(noted.subject, noted.data.replace(b"true", b"false"))
    with pytest.raises(Exception, match=r"started at .* and was not finished"):
        run(spark, tmp_path, **to_cluster(servers))
    run(spark, tmp_path, **to_cluster(servers, onLateReplay="write"))
    assert rows(servers) == [("orders.a", b"a")] * 2


def test_a_stream_that_remembers_no_ids_is_refused(spark: SparkSession, servers: str) -> None:
    with pelton.sync.open(servers) as jet:
        jet.create_stream("forgetful", subjects=["forgetful"], duplicate_window=0)
        window = jet.stream("forgetful").info().config.duplicate_window
    frame = spark.sql("SELECT 'forgetful' AS subject, 'x' AS data").write.format("pelton").mode("append")
    if window:
        pytest.skip("this server remembers ids for every stream")
    with pytest.raises(PySparkException, match="no duplicate_window"):
        frame.options(servers=servers, stream="forgetful").save()


async def test_tasks_that_are_tried_again_on_three_servers(
    spark: SparkSession, three_servers: NatsCluster, tmp_path: Path
) -> None:
    feed(tmp_path / "in", "1", LINES)
    async with pelton.open(three_servers.url) as jet:
        await jet.create_stream("orders", subjects=["orders.>"], allow_direct=True, num_replicas=3)
        await asyncio.to_thread(lambda: start(tmp_path, "servers", three_servers.url).wait())
        stored = await asyncio.to_thread(rows, three_servers.url)
        assert sorted(stored) == sorted_rows()
        assert (await (await jet.stream("SPARK_COMMITS")).info()).config.num_replicas == 3
