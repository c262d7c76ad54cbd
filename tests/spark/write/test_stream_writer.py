"""``df.writeStream``: every batch exactly once, whatever is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pelton
from tests.spark.write.test_writer import make, rows


def feed(folder: Path, name: str, lines: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f".{name}").write_text("\n".join(lines))
    (folder / f".{name}").rename(folder / name)


def query(spark: SparkSession, tmp_path: Path, shape: Callable[[DataFrame], DataFrame], **options: object) -> Any:
    read = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
    sink = shape(read).writeStream.format("pelton").option("checkpointLocation", str(tmp_path / "checkpoint"))
    target = {"path": str(tmp_path / "s.pelton"), "stream": "orders", **options}
    given = {name: value for name, value in target.items() if value is not None}
    return sink.options(**given).trigger(availableNow=True).start()


def run(spark: SparkSession, tmp_path: Path, **options: object) -> None:
    query(spark, tmp_path, plain, **options).awaitTermination()


def plain(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("'orders.a' AS subject", "value AS data").repartition(2)


def lose_last_commit(checkpoint: Path) -> None:
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_batches_are_stored_and_resumed(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    feed(tmp_path / "in", "1", ["a", "b"])
    feed(tmp_path / "in", "2", ["c"])
    run(spark, tmp_path)
    feed(tmp_path / "in", "3", ["d"])
    run(spark, tmp_path)
    assert sorted(data for _, data in rows(tmp_path / "s.pelton")) == [b"a", b"b", b"c", b"d"]
    assert not (tmp_path / "s.pelton-spark").exists()


def test_a_batch_that_spark_forgot_is_not_stored_again(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    feed(tmp_path / "in", "1", ["a", "b"])
    feed(tmp_path / "in", "2", ["c"])
    run(spark, tmp_path)
    lose_last_commit(tmp_path / "checkpoint")
    feed(tmp_path / "in", "3", ["d"])
    run(spark, tmp_path)
    assert sorted(data for _, data in rows(tmp_path / "s.pelton")) == [b"a", b"b", b"c", b"d"]
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        assert jet.stream("SPARK_COMMITS").info().state.messages == 1


def test_a_batch_that_failed_leaves_nothing_and_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    feed(tmp_path / "in", "1", [str(n) for n in range(100)])
    broken = tmp_path / "broken"
    broken.touch()

    def fail_while_broken(frame: DataFrame) -> DataFrame:
        flag = str(broken)

        def check(parts: Any) -> Any:
            from pathlib import Path

            for part in parts:
                if Path(flag).exists() and "77" in part.column("data").to_pylist():
                    raise OSError("it is broken")
                yield part

        return plain(frame).mapInArrow(check, "subject STRING, data STRING")

    with pytest.raises(Exception, match="it is broken"):
        query(spark, tmp_path, fail_while_broken).awaitTermination()
    assert rows(tmp_path / "s.pelton") == []
    broken.unlink()
    query(spark, tmp_path, fail_while_broken).awaitTermination()
    assert sorted(int(data) for _, data in rows(tmp_path / "s.pelton")) == list(range(100))
    assert not (tmp_path / "s.pelton-spark").exists()


def test_updates_of_an_aggregate_go_into_a_bucket_by_foreach_batch(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_bucket("counts")
    feed(tmp_path / "in", "1", ["a", "b", "a"])
    feed(tmp_path / "in", "2", ["a"])

    def save(frame: DataFrame, number: int) -> None:
        for _ in range(2):
            options = {"path": str(tmp_path / "s.pelton"), "bucket": "counts", "writeId": "counts"}
            frame.write.format("pelton").mode("append").options(**options, writeVersion=number).save()

    read = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
    counts = read.groupBy("value").count().selectExpr("value AS key", "string(count) AS value")
    sink = counts.writeStream.foreachBatch(save).outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    sink.trigger(availableNow=True).start().awaitTermination()
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        bucket = jet.bucket("counts")
        assert {key: bucket.get(key).value for key in list(bucket.keys())} == {"a": b"3", "b": b"1"}
        assert bucket.status().values == 2


def test_the_complete_mode_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    feed(tmp_path / "in", "1", ["a"])
    read = spark.readStream.format("text").load(str(tmp_path / "in")).groupBy("value").count()
    sink = read.selectExpr("'orders.a' AS subject", "value AS data").writeStream.format("pelton").outputMode("complete")
    options = {"path": str(tmp_path / "s.pelton"), "stream": "orders", "checkpointLocation": str(tmp_path / "c")}
    with pytest.raises(Exception, match="outputMode append"):
        sink.options(**options).start().awaitTermination()
