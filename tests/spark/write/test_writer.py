"""``df.write`` and ``df.writeStream``: every row exactly once, and nothing of failed writes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pelton


def make(path: Path, **config: Any) -> None:
    with pelton.sync.open(path) as jet:
        jet.create_stream("orders", **{"subjects": ["orders.>"], "allow_direct": True, **config})


def rows(path: Path, stream: str = "orders", **opened: Any) -> list[tuple[str, bytes]]:
    return [(message.subject, message.data) for message in messages(path, stream, **opened)]


def messages(path: Path, stream: str = "orders", **opened: Any) -> list[Any]:
    with pelton.sync.open(path, **opened) as jet:
        handle, found = jet.stream(stream), []
        while batch := handle.get_messages(256, seq=found[-1].seq + 1 if found else 1):
            found += batch
    return found


def numbers(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    made = spark.range(0, count, 1, parts)
    return made.selectExpr("concat('orders.', id % 7) AS subject", "cast(id AS string) AS data")


def write(frame: DataFrame, path: Path, **options: object) -> None:
    target = {} if {"bucket", "queue"} & set(options) else {"stream": "orders"}
    frame.write.format("pelton").mode("append").options(path=str(path), **{**target, **options}).save()


def test_rows_become_messages(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    write(numbers(spark, 1000), tmp_path / "s.pelton")
    assert rows(tmp_path / "s.pelton") == [(f"orders.{n % 7}", str(n).encode()) for n in range(1000)]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_headers_ids_and_times_to_live(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton", allow_msg_ttl=True, duplicate_window=3600)
    made = [
        ("orders.a", b"1", {"Color": ["red", "blue"]}, "one", 60),
        ("orders.a", b"2", None, "one", None),
        ("orders.b", b"3", {}, None, 3600),
        ("orders.b", b"4", None, None, None),
    ]
    schema = "subject STRING, data BINARY, headers MAP<STRING, ARRAY<STRING>>, msg_id STRING, ttl INT"
    write(spark.createDataFrame(made, schema).coalesce(1), tmp_path / "s.pelton")
    found = messages(tmp_path / "s.pelton")
    assert [message.data for message in found] == [b"1", b"3", b"4"]
    assert found[0].headers.get_all("Color") == ["red", "blue"]
    assert (found[0].headers["Nats-Msg-Id"], found[0].headers["Nats-TTL"]) == ("one", "60s")
    assert (dict(found[1].headers), dict(found[2].headers)) == ({"Nats-TTL": "3600s"}, {})


def test_subjects_by_template_and_rows_as_json(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    columns = """'eu' AS country, id, id / 4 AS share, timestamp'2026-01-02 03:04:05' AS at, date'2026-01-02' AS day,
        cast(1.5 AS DECIMAL(5, 2)) AS price, map('a', array(id)) AS tags, struct(id AS inner) AS more,
        cast(NULL AS STRING) AS none, double('NaN') AS nothing"""
    frame = spark.sql(f"SELECT {columns} FROM range(1, 2)")
    write(frame, tmp_path / "s.pelton", subject="orders.{country}.{id}.x")
    [(subject, data)] = rows(tmp_path / "s.pelton")
    assert subject == "orders.eu.1.x"
    assert json.loads(data) == {
        "country": "eu",
        "id": 1,
        "share": 0.25,
        "at": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "price": "1.50",
        "tags": {"a": [1]},
        "more": {"inner": 1},
        "none": None,
        "nothing": None,
    }


def test_rows_as_json_are_read_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    frame = spark.sql(
        """SELECT id, id / 4 AS share, timestamp'2026-01-02 03:04:05.678901' AS at, date'2026-01-02' AS day,
        cast(1.5 AS DECIMAL(5, 2)) AS price, array(1, NULL) AS numbers, map('a', 'b') AS tags, x'00ff' AS raw,
        named_struct('inner', 'é') AS more, cast(NULL AS STRING) AS none FROM range(20)"""
    )
    write(frame, tmp_path / "s.pelton", subject="orders.{id}")
    schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    read = spark.read.format("pelton").options(path=str(tmp_path / "s.pelton"), stream="orders", decode="json")
    values = read.option("valueSchema", schema).load().orderBy("sequence").select("value.*")
    assert sorted(values.collect()) == sorted(frame.collect())


def test_a_column_that_the_template_names_needs_no_place_in_the_data(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    write(spark.sql("SELECT 'eu' AS country, 'x' AS data"), tmp_path / "s.pelton", subject="orders.{country}")
    write(spark.sql("SELECT 'y' AS data"), tmp_path / "s.pelton", subject="orders.all")
    assert rows(tmp_path / "s.pelton") == [("orders.eu", b"x"), ("orders.all", b"y")]


def test_what_was_read_can_be_written(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.publish("orders.a", b"x", headers={"Color": "red"})
    make(tmp_path / "t.pelton")
    read = spark.read.format("pelton").options(path=str(tmp_path / "s.pelton"), stream="orders").load()
    write(read, tmp_path / "t.pelton")
    [copy] = messages(tmp_path / "t.pelton")
    assert (copy.subject, copy.data, dict(copy.headers)) == ("orders.a", b"x", {"Color": "red"})


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("1 AS id", {}, "no column subject"),
        ("1 AS subject, 'x' AS data", {}, "column subject is int; it must be string"),
        ("'orders.a' AS subject, 1.5 AS data", {}, "column data is decimal"),
        ("'orders.a' AS subject", {}, "nothing to write"),
        ("'orders.a' AS subject, 'x' AS data, 1 AS extra", {}, "columns extra would be lost"),
        ("'orders.a' AS subject, 'x' AS data, 5 AS ttl", {}, "no allow_msg_ttl"),
        ("'x' AS data", {"subject": "orders.{country}"}, "no column 'country'"),
        ("'x' AS data, array(1) AS country", {"subject": "orders.{country}"}, "cast it to string"),
        ("'x' AS data", {"subject": "orders..a"}, "write it like"),
        ("'x' AS data", {"subject": "orders.a", "stream": "nothing"}, "there is no stream 'nothing'"),
        ("'x' AS data", {"subject": "orders.a", "job": "paint"}, "option job"),
        ("'x' AS data", {"subject": "orders.a", "writeVersion": 1}, "set writeId too"),
        ("'x' AS data", {"subject": "orders.a", "subjekt": "x"}, "did you mean 'subject'"),
        ("'x' AS value", {"bucket": "cars"}, "there is no bucket 'cars'"),
        ("'x' AS car", {"queue": "garage", "job": "paint"}, "there is no queue 'garage'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, object], told: str
) -> None:
    make(tmp_path / "s.pelton")
    with pytest.raises(PySparkException, match=told):
        write(spark.sql(f"SELECT {columns}"), tmp_path / "s.pelton", **options)
    assert rows(tmp_path / "s.pelton") == []


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("if(id < 9, 'orders.a', NULL) AS subject, 'x' AS data", {}, "column subject is null in 1 of"),
        ("'orders.a' AS subject, if(id < 9, 'x', NULL) AS data", {}, "column data is null in 1 of"),
        ("concat('orders.', if(id < 9, 'x', '*')) AS subject, 'x' AS data", {}, "not a subject"),
        ("if(id < 9, 'orders.x', 'cars.x') AS subject, 'x' AS data", {}, "does not take"),
        ("if(id < 9, 'x', 'a b') AS part", {"subject": "orders.{part}"}, "column part is 'a b'"),
    ],
)
def test_a_row_that_cannot_be_written_fails_all(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, object], told: str
) -> None:
    make(tmp_path / "s.pelton")
    with pytest.raises(PySparkException, match=told):
        write(spark.range(0, 10, 1, 2).selectExpr(*_split(columns)), tmp_path / "s.pelton", **options)
    assert rows(tmp_path / "s.pelton") == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def _split(columns: str) -> list[str]:
    found, depth = [""], 0
    for letter in columns:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def test_overwriting_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    made = numbers(spark, 5).write.format("pelton").mode("overwrite")
    made = made.options(path=str(tmp_path / "s.pelton"), stream="orders")
    with pytest.raises(PySparkException, match="purge the stream first"):
        made.save()


def test_a_limit_that_refuses_one_row_refuses_all(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton", max_msgs=50, discard="new")
    with pytest.raises(PySparkException, match="maximum messages"):
        write(numbers(spark, 100), tmp_path / "s.pelton")
    assert rows(tmp_path / "s.pelton") == []
    write(numbers(spark, 50), tmp_path / "s.pelton")
    assert len(rows(tmp_path / "s.pelton")) == 50


def test_a_write_with_an_id_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "s.pelton")
    for _ in range(2):
        write(numbers(spark, 10), tmp_path / "s.pelton", writeId="daily load", writeVersion=3)
    assert len(rows(tmp_path / "s.pelton")) == 10
    write(numbers(spark, 10), tmp_path / "s.pelton", writeId="daily load", writeVersion=2)
    assert len(rows(tmp_path / "s.pelton")) == 10
    write(numbers(spark, 10), tmp_path / "s.pelton", writeId="daily load", writeVersion=4)
    assert len(rows(tmp_path / "s.pelton")) == 20


def test_an_encrypted_store_has_encrypted_files_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton", key="secret") as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
        with jet.transaction() as tx:
            tx.publish("orders.first", b"")
    write(numbers(spark, 100), tmp_path / "s.pelton", secretKey="secret", stagingPath=str(tmp_path / "staged"))
    assert len(rows(tmp_path / "s.pelton", key="secret")) == 101
    # The folder belongs to its user, the staged files in it are gone.
    assert os.listdir(tmp_path / "staged") == []


def test_buckets_take_keys_and_null_deletes(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        cars = jet.create_bucket("cars", history=5)
        cars.put("old", b"x")
    frame = spark.sql("SELECT explode(map('a', 'red', 'old', NULL, 'b.c', 'blue')) AS (key, value)")
    write(frame.coalesce(1), tmp_path / "s.pelton", bucket="cars")
    write(spark.sql("SELECT 'd' AS key, 4 AS wheels"), tmp_path / "s.pelton", bucket="cars")
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        cars = jet.bucket("cars")
        assert {key: cars.get(key).value for key in list(cars.keys())} == {
            "a": b"red",
            "b.c": b"blue",
            "d": b'{"wheels":4}',
        }
        assert [entry.operation for entry in cars.history("old")] == ["put", "delete"]
    with pytest.raises(PySparkException, match="column key: 'a b' cannot be a key"):
        write(spark.sql("SELECT 'a b' AS key, 'x' AS value"), tmp_path / "s.pelton", bucket="cars")


@pytest.mark.parametrize("exclusive", [True, False])
def test_jobs_are_run_by_workers_once(spark: SparkSession, tmp_path: Path, exclusive: bool) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.queue("garage", exclusive=exclusive)
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "concat('car', id % 3) AS car", "id AS number", "concat('car', id % 3) AS key", "string(id) AS idempotency_key"
    )
    for _ in range(2):
        write(frame, tmp_path / "s.pelton", queue="garage", job="paint")
    painted = []
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        garage = jet.queue("garage")

        @garage.job  # type: ignore[untyped-decorator]  # of the blocking face
        def paint(car: str, number: int) -> None:
            painted.append((number, car))

        garage.work(until_empty=True, handle_signals=False)
        assert garage.counts().completed == 20
    assert sorted(painted) == [(number, f"car{number % 3}") for number in range(20)]
