"""Task attempts that run side by side, and the batch that Spark reports to them; without a session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pelton.api import PeltonError
from pelton.spark.write.staging import BatchId, streaming_batch_id
from pelton.spark.write.writer import BatchWriter, StreamWriter, TaskCommit
from tests.spark.write.test_writer import make, rows

SCHEMA = StructType().add("subject", "string").add("data", "binary")


class Task(TaskContext):
    """The properties that Spark gives a task."""

    def __init__(self, partition: int, attempt: int, task: int, **told: str) -> None:
        self._numbers = partition, attempt, task
        self._told = told

    def partitionId(self) -> int:  # noqa: N802  # Spark's name
        return self._numbers[0]

    def attemptNumber(self) -> int:  # noqa: N802  # Spark's name
        return self._numbers[1]

    def taskAttemptId(self) -> int:  # noqa: N802  # Spark's name
        return self._numbers[2]

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802  # Spark's name
        return self._told.get(key.rpartition(".")[2])

    def __new__(cls, *args: object, **told: str) -> "Task":
        return object.__new__(cls)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def be(partition: int, attempt: int, task: int, **told: str) -> None:
        monkeypatch.setattr(TaskContext, "_taskContext", Task(partition, attempt, task, **told))

    return be  # type: ignore[return-value]  # the fixture's value


def batches(*data: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(["orders.a"] * len(data)), pa.array(data)], names=["subject", "data"])


def options(home: Path) -> dict[str, str]:
    return {"path": str(home / "s.pelton"), "stream": "orders"}


def test_of_two_tries_of_a_task_the_chosen_one_is_stored(tmp_path: Path, task: Any) -> None:
    make(tmp_path / "s.pelton")
    writer = BatchWriter(options(tmp_path), SCHEMA, overwrite=False)
    task(1, 0, 11)
    second = writer.write(batches(b"3", b"4"))
    task(0, 0, 10)
    slow = writer.write(batches(b"1", b"2"))
    task(0, 1, 12)
    chosen = writer.write(batches(b"1", b"2"))
    assert slow.path != chosen.path
    writer.commit([second, chosen])
    assert [data for _, data in rows(tmp_path / "s.pelton")] == [b"1", b"2", b"3", b"4"]
    assert not (tmp_path / "s.pelton-spark").exists()


def test_a_write_that_is_aborted_leaves_nothing(tmp_path: Path, task: Any) -> None:
    make(tmp_path / "s.pelton")
    writer = BatchWriter(options(tmp_path), SCHEMA, overwrite=False)
    task(0, 0, 10)
    written = writer.write(batches(b"1"))
    writer.abort([written, None])
    assert not (tmp_path / "s.pelton-spark").exists()
    writer.abort([None, None])


def test_two_drivers_of_one_batch_store_it_once(tmp_path: Path, task: Any) -> None:
    make(tmp_path / "s.pelton")
    writers = [StreamWriter(options(tmp_path), SCHEMA, overwrite=False) for _ in range(2)]
    written = []
    for number, writer in enumerate(writers):
        task(0, 0, number, queryId="q", batchId="7")
        written.append(writer.write(batches(b"1", b"2")))
    # The commit runs in another process than the write, with its own writer.
    late = StreamWriter(options(tmp_path), SCHEMA, overwrite=False)
    late.commit([written[1]], 7)
    late.commit([written[0]], 7)
    assert [data for _, data in rows(tmp_path / "s.pelton")] == [b"1", b"2"]


def test_a_stream_writer_that_is_aborted_without_a_word_does_nothing(tmp_path: Path, task: Any) -> None:
    make(tmp_path / "s.pelton")
    writer = StreamWriter(options(tmp_path), SCHEMA, overwrite=False)
    writer.abort([None], 3)
    task(0, 0, 1, queryId="q", batchId="3")
    writer.abort([writer.write(batches(b"1")), None], 3)
    assert not (tmp_path / "s.pelton-spark").exists()


def test_a_batch_of_nothing_is_nothing(tmp_path: Path, task: Any) -> None:
    make(tmp_path / "s.pelton")
    writer = StreamWriter(options(tmp_path), SCHEMA, overwrite=False)
    task(0, 0, 1, queryId="q", batchId="3")
    written = writer.write(iter(()))
    assert written == TaskCommit(BatchId("q", 3), 0, None)
    writer.commit([written], 3)
    assert rows(tmp_path / "s.pelton") == []


@pytest.mark.parametrize("told", [{}, {"queryId": "q"}, {"batchId": "1"}, {"queryId": "q", "batchId": "x"}])
def test_a_spark_that_does_not_tell_the_batch_is_refused(task: Any, told: dict[str, str]) -> None:
    task(0, 0, 1, **told)
    with pytest.raises(PeltonError, match="use foreachBatch, and in it write with writeId and writeVersion"):
        streaming_batch_id()
