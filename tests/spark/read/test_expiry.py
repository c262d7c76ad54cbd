"""Messages that a stream's limits remove: never read when expired, and missing only if they were planned to be read."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

import pelton
from pelton.spark import DataLossError
from pelton.spark.read.read_options import ReadOptions, read_options
from pelton.spark.read.readers import PeltonBatchReader, PeltonStreamReader
from pelton.testing import manual_runtime

SEQUENCES = StructType([StructField("sequence", LongType())])


def fill_long_ago(path: Path) -> None:
    """Store messages years ago, and leave them untouched since."""
    with pelton.sync.open(path, runtime=manual_runtime()) as jet:
        jet.create_stream("aged", subjects=["aged.>"], max_age=3600)
        jet.publish_batch([("aged.a", b"x")] * 20)
        jet.create_stream("living", subjects=["living.>"], allow_msg_ttl=True)
        for number in range(10):
            jet.publish("living.a", b"x", ttl=60 if number % 2 else None)
    assert stored(path) == 30


def stored(path: Path) -> int:
    import apsw

    connection = apsw.Connection(str(path))
    counts = [connection.execute(f"SELECT count(*) FROM m_{stream}").fetchone() for stream in (1, 2)]
    connection.close()
    return sum(int(str(found[0])) for found in counts if found is not None)


def test_what_is_past_its_age_or_its_time_to_live_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    fill_long_ago(path)
    frame = spark.read.format("pelton").options(path=str(path), stream="aged,living").load()
    rows = frame.select("stream", "sequence").orderBy("sequence").collect()
    assert [(row.stream, row.sequence) for row in rows] == [("living", seq) for seq in range(1, 11, 2)]
    assert stored(path) == 5, "they were removed when the read was planned"


def test_a_query_does_not_read_it_either_and_is_told_what_it_has_missed(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    fill_long_ago(path)

    def drain() -> None:
        frame = spark.readStream.format("pelton").options(path=str(path), stream="aged").load()
        writer = frame.writeStream.foreachBatch(lambda rows, _: seen.extend(row.sequence for row in rows.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    seen: list[int] = []
    with pelton.sync.open(path) as jet:
        jet.publish("aged.a", b"now")
    drain()
    assert seen == [21]
    with pelton.sync.open(path, runtime=manual_runtime()) as jet:
        jet.stream("aged").purge()
        jet.publish_batch([("aged.a", b"years ago")] * 3)
    with pelton.sync.open(path) as jet:
        jet.publish("aged.a", b"now")
    with pytest.raises(StreamingQueryException, match="the sequences 22 to 24 are gone"):
        drain()


# --- between the plan and the task


def options(path: Path, **more: object) -> ReadOptions:
    return read_options({"path": str(path), "stream": "orders", **{name: str(value) for name, value in more.items()}})


def fill(path: Path, count: int) -> Any:
    with pelton.sync.open(path) as jet:
        if "orders" not in jet.stream_names():
            jet.create_stream("orders", subjects=["orders.>"])
        jet.publish_batch([("orders.a", b"x")] * count)


def purge(path: Path, seq: int) -> None:
    with pelton.sync.open(path) as jet:
        jet.stream("orders").purge(seq=seq)


def sequences(reader: Any, part: Any) -> list[int]:
    return [seq for batch in reader.read(part) for seq in batch.column(0).to_pylist()]


@pytest.mark.parametrize("start", [{}, {"startingTime": "2020-01-01T00:00:00Z"}])
def test_a_front_that_moves_before_it_is_read_is_not_missed(tmp_path: Path, start: dict[str, str]) -> None:
    path = tmp_path / "s.pelton"
    fill(path, 100)
    reader = PeltonBatchReader(options(path, rowsPerPartition=50, **start), SEQUENCES)
    one, other = reader.partitions()
    purge(path, 31)
    assert sequences(reader, one) == list(range(31, 51))
    purge(path, 61)
    assert sequences(reader, one) == []
    with pytest.raises(DataLossError, match="the sequences 51 to 60 are gone"):
        sequences(reader, other)


def test_a_sequence_that_was_asked_for_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    fill(path, 100)
    reader = PeltonBatchReader(options(path, startingSequence=1), SEQUENCES)
    (part,) = reader.partitions()
    purge(path, 31)
    with pytest.raises(DataLossError, match="the sequences 1 to 30 are gone"):
        sequences(reader, part)


def test_a_query_that_has_read_nothing_begins_with_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    fill(path, 100)
    reader = PeltonStreamReader(options(path), SEQUENCES)
    try:
        start = reader.initialOffset()
        purge(path, 11)
        end = reader.latestOffset(start, ReadAllAvailable())
        (part,) = reader.partitions(start, end)
        purge(path, 21)
        assert sequences(reader, part) == list(range(21, 101))
        fill(path, 100)
        purge(path, 111)
        later = reader.latestOffset(end, ReadAllAvailable())
        with pytest.raises(DataLossError, match="the sequences 101 to 110 are gone"):
            reader.partitions(end, later)
    finally:
        reader.stop()
