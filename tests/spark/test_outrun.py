"""Failures of a query, on a file and on three servers: limits that outrun it, deleted streams, broken payloads."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pelton

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 160
Place = dict[str, str]


class Query:
    """A query over the stream ``orders`` that keeps the sequences it has read."""

    def __init__(self, spark: SparkSession, place: Place, home: Path) -> None:
        self.read: set[int] = set()
        self._spark, self._place, self._home = spark, place, home

    def start(self, shape: Callable[[DataFrame], DataFrame] = lambda frame: frame, **options: object) -> Any:
        source = self._spark.readStream.format("pelton").options(**self._place, stream="orders", **options)
        writer = shape(source.load()).select("sequence").writeStream.foreachBatch(self._keep)
        return writer.option("checkpointLocation", str(self._home / "checkpoint")).trigger(availableNow=True).start()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.read |= {row.sequence for row in frame.collect()}

    def drain(self, **options: object) -> None:
        self.start(**options).awaitTermination()


@pytest.fixture
def query(spark: SparkSession, place: Place, tmp_path: Path) -> Iterator[Query]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "8")
    yield Query(spark, place, tmp_path)
    spark.conf.unset(name)


def fill(place: Place, count: int = ROWS, size: int = 1 << 18) -> None:
    """Store messages, so large that a reader cannot be far ahead of the consumer of its rows."""
    [address] = place.values()
    with pelton.sync.open(address) as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
        for _ in range(count):
            jet.publish("orders.big", bytes(size))


def stopping(home: Path) -> Callable[[DataFrame], DataFrame]:
    """Pause a task between its first rows (``begun``) and all others, until the file ``go`` exists."""
    begun, go = str(home / "begun"), str(home / "go")

    def hand_on(parts: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for part in parts:
            yield part
            Path(begun).touch()
            while not os.path.exists(go):
                time.sleep(0.02)

    return lambda frame: frame.select("sequence", "data").mapInArrow(hand_on, "sequence BIGINT, data BINARY")


def wait_until(condition: Callable[[], bool], running: Any) -> None:
    while not condition():
        assert running.isActive, running.exception()
        time.sleep(0.02)


def meanwhile(query: Query, place: Place, home: Path, harm: Callable[[Any], object], told: str) -> None:
    """Break something in the middle of a batch, which fails with the expected error."""
    before = set(query.read)
    running = query.start(stopping(home))
    wait_until((home / "begun").exists, running)
    [address] = place.values()
    with pelton.sync.open(address) as jet:
        harm(jet)
    (home / "go").touch()
    with pytest.raises(StreamingQueryException, match=told):
        running.awaitTermination()
    assert query.read == before


def test_limits_that_remove_messages_in_the_middle_of_a_batch(query: Query, place: Place, tmp_path: Path) -> None:
    fill(place, 5, 1)
    query.drain()
    fill(place)
    meanwhile(query, place, tmp_path, lambda jet: jet.update_stream("orders", max_msgs=10), r"\d+ to 155 are gone")
    # The batch was planned, so the same one is repeated.
    with pytest.raises(StreamingQueryException, match="the sequences 6 to 155 are gone"):
        query.drain()
    query.drain(failOnDataLoss="false")
    assert query.read == {*range(1, 6), *range(156, 166)}


def test_a_stream_that_is_deleted_in_the_middle_of_a_batch(query: Query, place: Place, tmp_path: Path) -> None:
    fill(place)
    meanwhile(query, place, tmp_path, lambda jet: jet.delete_stream("orders"), "stream not found")
    with pytest.raises(StreamingQueryException, match="stream not found"):
        query.drain()
    fill(place, 5, 1)
    with pytest.raises(StreamingQueryException, match="it was deleted"):
        query.drain()
    query.drain(failOnDataLoss="false")
    assert query.read == set(range(1, 6))


def test_limits_that_removed_what_was_not_read_yet(query: Query, place: Place) -> None:
    fill(place, 10, 1)
    query.drain()
    [address] = place.values()
    with pelton.sync.open(address) as jet:
        jet.update_stream("orders", max_msgs=50)
        jet.publish_batch([("orders.a", b"x")] * 100)
    with pytest.raises(StreamingQueryException, match="the sequences 11 to 60 are gone"):
        query.drain()
    query.drain(failOnDataLoss="false")
    assert query.read == {*range(1, 11), *range(61, 111)}


def test_payloads_that_do_not_parse_are_kept(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    payloads = [b'{"id": 7}', b"{not json", b'{"id": "seven"}', b"\xff\xfe", b"", b"{}"]
    [address] = place.values()
    with pelton.sync.open(address) as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
        jet.publish_batch([("orders.json", data) for data in payloads])
    found: list[Any] = []
    options = {"stream": "orders", "decode": "json", "valueSchema": "id BIGINT"}
    frame = spark.readStream.format("pelton").options(**place, **options).load()
    writer = frame.writeStream.foreachBatch(lambda rows, batch: found.extend(rows.orderBy("sequence").collect()))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert [bytes(row.data) for row in found] == payloads
    assert [row.value.id if row.value else None for row in found] == [7, None, None, None, None, None]
    assert [row.error is None for row in found] == [True, False, False, False, False, True]
