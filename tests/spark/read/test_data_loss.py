"""A corrupted message that Spark skips: logged by the task, and kept in the store."""

from pathlib import Path

import apsw
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import pelton
from pelton.api import CorruptMessageError
from pelton.spark.read.read_options import read_options
from pelton.spark.read.readers import PeltonBatchReader

SEQUENCES = StructType([StructField("sequence", LongType())])


def read(path: Path, **options: str) -> list[int]:
    reader = PeltonBatchReader(read_options({"path": str(path), "stream": "orders", **options}), SEQUENCES)
    return [seq for part in reader.partitions() for batch in reader.read(part) for seq in batch.column(0).to_pylist()]


def test_what_is_damaged_is_told_to_all_who_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s.pelton"
    with pelton.sync.open(path) as jet:
        stream = jet.create_stream("orders", subjects=["orders.>"])
        for _ in range(20):
            jet.publish("orders.a", b"x")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE m_1 SET data=x'00' WHERE seq=7")
    connection.close()
    with pytest.raises(CorruptMessageError, match="sequence 7"):
        read(path)
    assert read(path, failOnDataLoss="false") == [seq for seq in range(1, 21) if seq != 7]
    assert any(one.levelname == "WARNING" and "sequence 7" in one.getMessage() for one in caplog.records)
    # The read has written nothing, and hidden nothing: any other reader finds it as before.
    assert any("7" in problem for problem in pelton.verify(path))
    with pelton.sync.open(path) as jet:
        stream = jet.stream("orders")
        with pytest.raises(CorruptMessageError):
            stream.get_message(7)
        delivered = stream.create_consumer(durable_name="c").fetch(20)
        assert [message.delivered.seq for message in delivered] == [s for s in range(1, 21) if s != 7]
