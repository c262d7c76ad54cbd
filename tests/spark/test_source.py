"""Options that the data source refuses, with the calls that Spark makes, but without Spark."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import pelton
from pelton.spark import DataLossError, PeltonSource
from pelton.spark.read.readers import PeltonStreamReader

SCHEMA = StructType([StructField("sequence", LongType())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        for name in ("orders", "returns"):
            jet.create_stream(name, subjects=[f"{name}.>"])
            jet.publish(f"{name}.1", b"x")
    return tmp_path / "s.pelton"


def streaming(path: Path, **options: str) -> PeltonStreamReader:
    return PeltonSource({"path": str(path), **options}).streamReader(SCHEMA)


def test_a_streaming_query_has_no_end(path: Path) -> None:
    with pytest.raises(pelton.ConfigError, match="has no end"):
        streaming(path, stream="orders", endingSequence="5")


def test_a_batch_has_no_consumer(path: Path) -> None:
    source = PeltonSource({"path": str(path), "stream": "orders", "consumer": "me"})
    with pytest.raises(pelton.ConfigError, match="follows a streaming query"):
        source.reader(SCHEMA)


def test_a_stream_that_is_not_asked_for_any_more_is_told_as_that(path: Path) -> None:
    before = streaming(path, stream="orders")
    start = before.initialOffset()
    before.stop()
    other = streaming(path, stream="returns")
    with pytest.raises(DataLossError, match=r"option stream \(returns\) does not"):
        other.latestOffset(start, ReadMaxRows(10))
    other.stop()
    both = streaming(path, stream="orders,returns")
    assert set(both.latestOffset(start, ReadMaxRows(10))) == {"orders", "returns"}
    both.stop()
