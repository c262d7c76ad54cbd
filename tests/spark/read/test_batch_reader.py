"""``spark.read.format("pelton")``: exactly the rows that are in the store."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import pelton
from pelton.api import parse_rfc3339
from pelton.columns.arrow_batches import BatchBuilder
from pelton.spark import DataLossError
from pelton.spark.options import StoreOptions
from pelton.spark.read.ranges import DataLossPolicy, SequenceRange, read_store


def fill(path: Path, count: int = 100, stream: str = "orders", key: str | None = None, **config: Any) -> list[Any]:
    """Store messages, some with headers, and return them as stored."""
    with pelton.sync.open(path, key=key) as jet:
        made = jet.create_stream(stream, subjects=[f"{stream}.>"], allow_direct=True, **config)
        messages = [
            (f"{stream}.{'eu' if number % 3 else 'us'}.{number % 7}", f"payload {number}".encode() * (number % 5))
            if number % 10
            else (f"{stream}.eu.0", b"x", {"Number": str(number), "Both": ["one", "two"]})
            for number in range(count)
        ]
        jet.publish_batch(messages)
        return stored(made)


def stored(stream: Any) -> list[Any]:
    found: list[Any] = []
    while batch := stream.get_messages(256, seq=found[-1].seq + 1 if found else 1):
        found += batch
    return found


def reading(spark: SparkSession, path: Path, stream: str = "orders", **options: object) -> Any:
    return spark.read.format("pelton").options(path=str(path), stream=stream, **options)


def read(spark: SparkSession, path: Path, stream: str = "orders", **options: object) -> DataFrame:
    return reading(spark, path, stream, **options).load()


def as_row(message: Any, stream: str = "orders") -> Row:
    headers = {name: message.headers.get_all(name) for name in message.headers} or None
    time = datetime.fromtimestamp(message.time_ns // 1000 / 1e6)
    return Row(
        stream=stream,
        subject=message.subject,
        sequence=message.seq,
        time=time,
        headers=headers,
        data=bytearray(message.data),
        size=len(message.data),
    )


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def test_rows_are_the_messages(spark: SparkSession, tmp_path: Path) -> None:
    messages = fill(tmp_path / "s.pelton", 500)
    assert read(spark, tmp_path / "s.pelton").orderBy("sequence").collect() == [as_row(m) for m in messages]


def test_a_schema_prunes_and_orders_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    messages = fill(tmp_path / "s.pelton", 20)
    frame = reading(spark, tmp_path / "s.pelton").schema("size BIGINT, sequence BIGINT").load()
    assert frame.collect() == [Row(size=len(m.data), sequence=m.seq) for m in messages]


@pytest.mark.parametrize(
    ("schema", "told"), [("sequences BIGINT", "no column 'sequences'"), ("sequence STRING", "sequence is bigint")]
)
def test_columns_that_are_not_there_are_refused(spark: SparkSession, tmp_path: Path, schema: str, told: str) -> None:
    fill(tmp_path / "s.pelton", 5)
    with pytest.raises(PySparkException, match=told):
        reading(spark, tmp_path / "s.pelton").schema(schema).load().collect()


def test_ranges_are_cut_the_same_way_each_time(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "s.pelton", 1000)
    frame = read(spark, tmp_path / "s.pelton", rowsPerPartition=300)
    parts = [[row.sequence for row in part] for part in frame.select("sequence").rdd.glom().collect()]
    assert [(part[0], part[-1]) for part in parts] == [(1, 250), (251, 500), (501, 750), (751, 1000)]
    assert read(spark, tmp_path / "s.pelton", minPartitions=3).rdd.getNumPartitions() == 3


def test_several_streams_and_patterns(spark: SparkSession, tmp_path: Path) -> None:
    for stream in ("orders-eu", "orders-us", "cars"):
        fill(tmp_path / "s.pelton", 10, stream)
    counts = lambda text: sorted(read(spark, tmp_path / "s.pelton", text).groupBy("stream").count().collect())  # noqa: E731
    assert counts("orders-*") == [("orders-eu", 10), ("orders-us", 10)]
    assert counts("cars, orders-eu") == [("cars", 10), ("orders-eu", 10)]
    assert counts("nothing-*") == []


def test_bounds_by_sequence_and_time(spark: SparkSession, tmp_path: Path) -> None:
    messages = fill(tmp_path / "s.pelton", 30)
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.publish("orders.late", b"")
        late = jet.stream("orders").get_message(31).time
    path = tmp_path / "s.pelton"
    assert sequences(read(spark, path, startingSequence=5, endingSequence=9)) == [5, 6, 7, 8, 9]
    assert sequences(read(spark, path, startingSequence='{"orders": 29}')) == [29, 30, 31]
    assert sequences(read(spark, path, startingTime=late)) == [31]
    assert sequences(read(spark, path, endingTime=late)) == [m.seq for m in messages]
    assert sequences(read(spark, path, startingSequence="latest")) == []


def test_subject_filters(spark: SparkSession, tmp_path: Path) -> None:
    messages = fill(tmp_path / "s.pelton", 60)
    for filters in ("orders.eu.>", "orders.*.1", "orders.us.*,orders.eu.0"):
        tests = [pelton.subjects.compile_filter(text) for text in filters.split(",")]
        expected = [m.seq for m in messages if any(test(m.subject) for test in tests)]
        assert sequences(read(spark, tmp_path / "s.pelton", subjects=filters)) == expected


def test_removed_messages_and_compressed_ones(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        stream = jet.create_stream("orders", subjects=["orders.>"], compression="s2", allow_direct=True)
        jet.publish_batch([("orders.a", b"text that repeats " * 50 + str(n).encode()) for n in range(3000)])
        for seq in (1, 2, 500, 2999, 3000):
            stream.delete_message(seq)
        expected = [(m.seq, m.data) for m in stored(stream)]
    found = read(spark, tmp_path / "s.pelton").orderBy("sequence").select("sequence", "data").collect()
    assert [(row.sequence, bytes(row.data)) for row in found] == expected


def test_an_encrypted_store(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "s.pelton", 10, key="secret")
    (tmp_path / "key").write_text("secret\n")
    assert sequences(read(spark, tmp_path / "s.pelton", secretKey="secret")) == list(range(1, 11))
    assert sequences(read(spark, tmp_path / "s.pelton", keyFile=str(tmp_path / "key"))) == list(range(1, 11))
    with pytest.raises(PySparkException, match="it is encrypted"):
        read(spark, tmp_path / "s.pelton").collect()


def test_predicates_are_pushed_down(spark: SparkSession, tmp_path: Path) -> None:
    messages = fill(tmp_path / "s.pelton", 1000)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, tmp_path / "s.pelton", rowsPerPartition=100)
        narrow = frame.where("sequence > 250 and sequence <= 440")
        assert sequences(narrow) == list(range(251, 441))
        assert narrow.rdd.getNumPartitions() == 2
        by_subject = frame.where("subject = 'orders.us.3'")
        assert sequences(by_subject) == [m.seq for m in messages if m.subject == "orders.us.3"]
        time = messages[700].time.replace("T", " ").rstrip("Z")[:26]
        after = frame.where(f"time >= timestamp'{time}'")
        edge = parse_rfc3339(time.replace(" ", "T") + "Z")
        assert sequences(after) == [m.seq for m in messages if m.time_ns // 1000 * 1000 >= edge]
        assert sequences(frame.where("stream = 'cars'")) == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_payloads_are_decoded_and_what_does_not_parse_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    good = {"id": 7, "price": 1.5, "tags": ["a", None], "at": "2026-01-02T03:04:05Z", "more": {"x": "y"}, "extra": 1}
    payloads = [json.dumps(good).encode(), b"{not json", b'{"id": "seven"}', b"\xff\xfe", b"{}", b"null"]
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish_batch([("orders.json", data) for data in payloads])
        jet.publish_batch([("orders.msgpack", msgspec.msgpack.encode({"id": 8})), ("orders.msgpack", b"\xc1")])
    schema = "id BIGINT, price DOUBLE, tags ARRAY<STRING>, at TIMESTAMP, more MAP<STRING, STRING>"
    frame = read(spark, tmp_path / "s.pelton", subjects="orders.json", decode="json", valueSchema=schema)
    rows = frame.orderBy("sequence").collect()
    first = rows[0].value
    assert (first.id, first.price, first.tags, first.more) == (7, 1.5, ["a", None], {"x": "y"})
    assert first["at"].astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [row.error is None for row in rows] == [True, False, False, False, True, True]
    assert [row.value is None for row in rows] == [False, True, True, True, False, True]
    assert [bytes(row.data) for row in rows] == payloads
    packed = read(spark, tmp_path / "s.pelton", subjects="orders.msgpack", decode="msgpack", valueSchema="id INT")
    assert [(row.value and row.value.id, bool(row.error)) for row in packed.collect()] == [(8, False), (None, True)]
    texts = read(spark, tmp_path / "s.pelton", subjects="orders.json", decode="text").orderBy("sequence").collect()
    assert [row.value for row in texts] == [data.decode() if data[:1] != b"\xff" else None for data in payloads]


def test_a_number_that_does_not_fit_is_an_error_of_its_row(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish_batch([("orders.a", b'{"d": "1.25"}'), ("orders.a", b'{"d": "123456.789"}')])
    frame = read(spark, tmp_path / "s.pelton", decode="json", valueSchema="d DECIMAL(5,2)").orderBy("sequence")
    first, second = frame.collect()
    assert (str(first.value.d), second.value, bool(second.error)) == ("1.25", None, True)


def test_a_damaged_message_is_an_error_or_passed_by(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "s.pelton", 20)
    damage(tmp_path / "s.pelton", "UPDATE m_1 SET data=x'00' WHERE seq=7")
    damage(tmp_path / "s.pelton", "UPDATE m_1 SET subject=CAST(x'ff' AS TEXT) WHERE seq=9")
    with pytest.raises(PySparkException, match="sequence 7, checksum mismatch"):
        read(spark, tmp_path / "s.pelton").collect()
    kept = sequences(read(spark, tmp_path / "s.pelton", failOnDataLoss="false"))
    assert kept == [seq for seq in range(1, 21) if seq not in (7, 9)]


def test_a_front_that_limits_removed_is_an_error_or_noted(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "s.pelton", 100, max_msgs=40)
    with pytest.raises(PySparkException, match="the sequences 11 to 60 are gone"):
        read(spark, tmp_path / "s.pelton", startingSequence=11).collect()
    kept = read(spark, tmp_path / "s.pelton", startingSequence=11, failOnDataLoss="false")
    assert sequences(kept) == list(range(61, 101))
    assert sequences(read(spark, tmp_path / "s.pelton")) == list(range(61, 101))


def damage(path: Path, sql: str) -> None:
    import apsw

    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"strem": "orders"}, "did you mean 'stream'"),
        ({"stream": ""}, "say which stream"),
        ({"stream": "none"}, "stream not found"),
        ({"servers": "nats://localhost"}, "say where the streams are"),
        ({"user": "me"}, "belong to a cluster"),
        ({"startingSequence": "first"}, "option startingSequence"),
        ({"endingTime": "yesterday"}, "no RFC 3339 time"),
        ({"minPartitions": "0"}, "give 1 or more"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"decode": "xml"}, "choose json, msgpack or text"),
        ({"decode": "json"}, "needs valueSchema"),
        ({"subjects": "a..b"}, "not a subject filter"),
        ({"startingSequence": "1", "startingTime": "2026-01-02T03:04:05Z"}, "both bound"),
        ({"startingSequence": '{"oders": 3}'}, "'oders', which option stream does not: orders"),
        ({"startingOffsets": "earliest"}, "did you mean 'startingSequence'"),
        ({"decode": "json", "valueSchema": "id BIGNT"}, "BIGNT"),
        ({"consumer": "me"}, "follows a streaming query"),
    ],
)
def test_options_that_cannot_be_right_are_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], told: str
) -> None:
    fill(tmp_path / "s.pelton", 1)
    with pytest.raises(PySparkException, match=told):
        read(spark, tmp_path / "s.pelton", **{"stream": "orders", **options}).collect()


def test_reading_makes_no_store(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no such file"):
        read(spark, tmp_path / "none.pelton").collect()
    assert not (tmp_path / "none.pelton").exists()


def test_what_limits_remove_while_a_task_reads_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    with pelton.sync.open(path) as jet:
        stream = jet.create_stream("orders", subjects=["orders.>"])
        part = SequenceRange("orders", stream.info().created, 1, 40, fails_on_loss=True)
        jet.publish_batch([("orders.big", bytes(1 << 18))] * 40)

        def batches(*, fail: bool) -> Iterator[list[int]]:
            schema = pa.schema([pa.field("sequence", pa.int64())])
            builder = BatchBuilder("orders", schema, None)
            for batch in read_store(StoreOptions(str(path), False), part, (), builder, DataLossPolicy(fail=fail)):
                yield batch.column(0).to_pylist()

        reading = batches(fail=True)
        first = next(reading)
        assert first == list(range(1, 17)), "as many as reach 4 MiB"
        stream.purge(seq=40)
        with pytest.raises(DataLossError, match="the sequences 17 to 39 are gone"):
            next(reading)
        assert list(batches(fail=False)) == [[40]]
        jet.delete_stream("orders")
        with pytest.raises(pelton.StreamNotFoundError):
            next(batches(fail=False))
