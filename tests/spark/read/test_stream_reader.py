"""``spark.readStream.format("pelton")``: every message once, in batches that are the same when they are read again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pelton
from pelton.spark import lag

pytestmark = pytest.mark.usefixtures("spark")


class Pipe:
    """A store, and a query over it whose batches are recorded."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.path = folder / "s.pelton"
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[tuple[str, int]]] = {}
        self.progress: list[Any] = []

    def publish(self, count: int, stream: str = "orders", **config: Any) -> None:
        with pelton.sync.open(self.path) as jet:
            if stream not in jet.stream_names():
                jet.create_stream(stream, subjects=[f"{stream}.>"], **config)
            jet.publish_batch([(f"{stream}.{number % 3}", b"x" * 100) for number in range(count)])

    def write(self, stream: str = "orders", **options: object) -> Any:
        source = self.spark.readStream.format("pelton").options(path=str(self.path), stream=stream, **options)
        kept = source.load().select("stream", "sequence")
        return kept.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(self._keep)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        rows = sorted((row.stream, row.sequence) for row in frame.collect())
        assert self.batches.get(batch, rows) == rows, "a batch that is read again is the same"
        self.batches[batch] = rows

    def drain(self, stream: str = "orders", **options: object) -> None:
        """Read everything stored, and end."""
        query = self.write(stream, **options).trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
            assert not query.isActive
            self.progress = query.recentProgress
        finally:
            query.stop()

    def forget_the_last_end(self) -> None:
        """Lose the last entry of the checkpoint's log, as in a power loss."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)

    def sizes(self) -> list[int]:
        return [len(self.batches[batch]) for batch in sorted(self.batches)]


@pytest.fixture
def pipe(spark: SparkSession, tmp_path: Path) -> Pipe:
    return Pipe(spark, tmp_path)


@pytest.fixture
def stopping() -> Iterator[Callable[[Any], Any]]:
    started: list[Any] = []

    def start(writer: Any) -> Any:
        started.append(writer.trigger(processingTime="50 milliseconds").start())
        return started[-1]

    yield start
    for query in started:
        query.stop()


def expected(count: int, stream: str = "orders", first: int = 1) -> list[tuple[str, int]]:
    return [(stream, seq) for seq in range(first, first + count)]


def test_available_now_reads_all_in_batches_and_goes_on_after(pipe: Pipe) -> None:
    pipe.publish(250)
    pipe.drain(maxRowsPerTrigger=100)
    assert pipe.sizes() == [100, 100, 50]
    pipe.publish(10)
    pipe.drain(maxRowsPerTrigger=100)
    assert pipe.rows() == expected(260)
    assert pipe.sizes()[-1] == 10


def test_a_lost_end_of_a_batch_reads_the_same_batch_again(pipe: Pipe) -> None:
    pipe.publish(250)
    pipe.drain(maxRowsPerTrigger=100)
    pipe.forget_the_last_end()
    before = dict(pipe.batches)
    pipe.publish(20)
    pipe.drain(maxRowsPerTrigger=100)
    assert {batch: pipe.batches[batch] for batch in before} == before
    assert pipe.rows() == expected(270)


def test_what_is_written_while_a_query_runs_is_read_and_the_lag_is_told(
    pipe: Pipe, stopping: Callable[[Any], Any]
) -> None:
    pipe.publish(10)
    query = stopping(pipe.write())
    with pelton.sync.open(pipe.path) as jet:
        for _ in range(5):
            jet.publish_batch([("orders.a", b"x")] * 20)
        eventually_sync(lambda: pipe.rows() == expected(110))
    eventually_sync(lambda: query.lastProgress is not None and lag(query.lastProgress) == {"orders": 0})


def eventually_sync(condition: Callable[[], bool]) -> None:
    import time

    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)


def test_several_streams_and_a_new_one_that_matches(pipe: Pipe) -> None:
    pipe.publish(30, "orders-eu")
    pipe.publish(60, "orders-us")
    pipe.drain("orders-*", maxRowsPerTrigger=30)
    assert pipe.sizes() == [30, 30, 30]
    pipe.publish(5, "orders-fr")
    pipe.drain("orders-*")
    assert pipe.rows() == expected(30, "orders-eu") + expected(5, "orders-fr") + expected(60, "orders-us")


def test_max_bytes_and_min_rows(pipe: Pipe) -> None:
    pipe.publish(100)
    with pelton.sync.open(pipe.path) as jet:
        size = jet.stream("orders").info().state.bytes // 100
    pipe.drain(maxBytesPerTrigger=size * 40)
    assert pipe.sizes() == [40, 40, 20]


def test_too_little_waits_until_there_is_enough(pipe: Pipe, stopping: Callable[[Any], Any]) -> None:
    pipe.publish(5)
    query = stopping(pipe.write(minRowsPerTrigger=10, maxTriggerDelay="1h"))
    eventually_sync(lambda: query.lastProgress is not None)
    assert pipe.rows() == []
    pipe.publish(5)
    eventually_sync(lambda: pipe.rows() == expected(10))
    pipe.publish(1)
    second = Pipe(pipe.spark, pipe.path.parent / "other")
    second.path = pipe.path
    stopping(second.write(minRowsPerTrigger=1000, maxTriggerDelay="10ms"))
    eventually_sync(lambda: second.rows() == expected(11))


def test_gaps_and_filters_make_full_batches_and_no_empty_ones(pipe: Pipe) -> None:
    pipe.publish(300)
    with pelton.sync.open(pipe.path) as jet:
        stream = jet.stream("orders")
        for seq in range(100, 200):
            stream.delete_message(seq)
    pipe.drain(subjects="orders.1", maxRowsPerTrigger=20)
    kept = [("orders", seq) for seq in range(1, 301) if (seq - 1) % 3 == 1 and not 100 <= seq < 200]
    assert pipe.rows() == kept
    assert all(12 <= size <= 20 for size in pipe.sizes()[:-1])
    with pelton.sync.open(pipe.path) as jet:
        jet.publish_batch([("orders.0", b"")] * 50)
    batches = len(pipe.batches)
    pipe.drain(subjects="orders.1")
    assert len(pipe.batches) == batches


def test_starting_positions(pipe: Pipe) -> None:
    pipe.publish(20)
    pipe.drain(startingSequence=15)
    assert pipe.rows() == expected(6, first=15)


def test_latest_begins_behind_what_is_there(pipe: Pipe) -> None:
    pipe.publish(20)
    pipe.drain(startingSequence="latest")
    pipe.publish(3)
    pipe.drain(startingSequence="latest")
    assert pipe.rows() == expected(3, first=21)


def test_what_limits_removed_before_it_was_read_is_an_error_that_names_it(pipe: Pipe) -> None:
    pipe.publish(10, max_msgs=50)
    pipe.drain()
    pipe.publish(100)
    with pytest.raises(StreamingQueryException, match="the sequences 11 to 60 are gone"):
        pipe.drain()
    pipe.drain(failOnDataLoss="false")
    assert pipe.rows() == expected(10) + expected(50, first=61)


def test_a_stream_that_is_deleted_under_a_query_is_an_error(pipe: Pipe) -> None:
    pipe.publish(10)
    pipe.drain()
    with pelton.sync.open(pipe.path) as jet:
        jet.delete_stream("orders")
    with pytest.raises(StreamingQueryException, match="it was deleted"):
        pipe.drain()
    pipe.publish(5)
    with pytest.raises(StreamingQueryException, match="created again"):
        pipe.drain()
    pipe.drain(failOnDataLoss="false")
    assert pipe.sizes() == [10, 5]


# --- a consumer that follows


def consumer(path: Path, stream: str = "orders") -> Any:
    with pelton.sync.open(path) as jet:
        return jet.stream(stream).consumer("spark").info()


def test_a_consumer_follows_and_shows_the_lag(pipe: Pipe) -> None:
    pipe.publish(100)
    pipe.drain(consumer="spark", maxRowsPerTrigger=40)
    pipe.publish(7)
    assert consumer(pipe.path).num_pending == 7


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_work_queue_drains_one_batch_behind_and_is_reconciled_at_the_start(pipe: Pipe, retention: str) -> None:
    pipe.publish(0, retention=retention)
    pipe.drain(consumer="spark")
    pipe.publish(250)
    pipe.drain(consumer="spark", maxRowsPerTrigger=100)
    with pelton.sync.open(pipe.path) as jet:
        assert jet.stream("orders").info().state.messages == 50
    pipe.drain(consumer="spark")
    with pelton.sync.open(pipe.path) as jet:
        assert jet.stream("orders").info().state.messages == 0
    assert pipe.rows() == expected(250)


def test_a_work_queue_loses_nothing_when_the_end_of_its_last_batch_is_forgotten(pipe: Pipe) -> None:
    pipe.publish(150, retention="workqueue")
    pipe.drain(consumer="spark", maxRowsPerTrigger=100)
    pipe.forget_the_last_end()
    pipe.drain(consumer="spark")
    assert pipe.rows() == expected(150)
    assert pipe.sizes() == [100, 50]
