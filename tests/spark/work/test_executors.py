"""Executors as workers: each job takes effect once, keys in order, failures by row, redelivery after a kill."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pelton
from pelton.api import ConfigError
from pelton.queue import Outcome
from pelton.spark import enqueue_from, work
from tests.kit.nats_server import nats_server

FAST = pelton.Backoff(base=0.01, factor=1, cap=0.01, jitter=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running.url


@pytest.fixture(params=["path", "servers"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """A store file, and a server that is empty."""
    if request.param == "path":
        return {"path": str(tmp_path / "g.pelton")}
    url = request.getfixturevalue("server")
    with pelton.sync.open(url) as jet:
        for name in jet.stream_names():
            jet.delete_stream(name)
    return {"servers": url}


def address(place: dict[str, str]) -> str:
    [found] = place.values()
    return found


def make(place: dict[str, str], count: int, *, keys: int = 0, **config: Any) -> None:
    """A queue ``g`` with jobs ``paint`` numbered from 0."""
    with pelton.sync.open(address(place)) as jet:
        queue = jet.queue("g", **config)

        def paint(n: int) -> None: ...

        named = [f"k{n % keys}" if keys else "" for n in range(count)]
        queue.job(paint).enqueue_many([(n,) for n in range(count)], keys=named)


def history(place: dict[str, str]) -> list[Outcome]:
    with pelton.sync.open(address(place)) as jet:
        return list(jet.queue("g").history())


def same(rows: Any) -> Any:
    return rows.select(["id"])


def test_every_job_is_done_once_and_kept_with_its_result(spark: SparkSession, place: dict[str, str]) -> None:
    make(place, 600)

    def paint(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"id": rows["id"], "twice": rows["n"] * 2})

    told = work("g", paint, args="n INT", claim=50, **place)
    assert (told.completed, told.failed, told.lost) == (600, 0, 0)
    outcomes = history(place)
    assert sorted((int(o.id), o.value()) for o in outcomes) == [(n + 1, {"twice": 2 * n}) for n in range(600)]
    assert {(o.job, o.state, o.attempt) for o in outcomes} == {("paint", "completed", 1)}


def test_keys_are_exclusive_and_in_order_over_all_tasks(spark: SparkSession, place: dict[str, str]) -> None:
    make(place, 60, keys=6, exclusive=True)
    with pelton.sync.open(address(place)) as jet:
        jet.create_stream("painted", subjects=["painted.>"], allow_direct=True)

    def paint(rows: pa.RecordBatch) -> pa.Table:
        assert len(set(rows.column("key").to_pylist())) == rows.num_rows
        return pa.table({"id": rows["id"], "key": rows["key"], "data": rows["n"].cast(pa.string())})

    told = work(
        "g", paint, kind="arrow", args="n INT", stream="painted", subject="painted.{key}", tasks=2, claim=3, **place
    )
    assert told.completed == 60
    by_key: dict[str, list[Outcome]] = {}
    for outcome in sorted(history(place), key=lambda outcome: int(outcome.id)):
        by_key.setdefault(outcome.key, []).append(outcome)
    for outcomes in by_key.values():
        assert all(a.finished_at <= b.started_at for a, b in pairwise(outcomes))
    with pelton.sync.open(address(place)) as jet:
        found = jet.stream("painted").get_messages(256, seq=1)
    for key in range(6):
        numbers = [int(message.data) for message in found if message.subject == f"painted.k{key}"]
        assert numbers == list(range(key, 60, 6))


def test_rows_that_fail_are_tried_again_and_end_as_dead_letters(spark: SparkSession, place: dict[str, str]) -> None:
    make(place, 40)

    def paint(rows: pd.DataFrame) -> pd.DataFrame:
        made = pd.DataFrame({"id": rows["id"], "error": None, "permanent": rows["n"] == 1, "retry_after": 0.01})
        made.loc[(rows["n"] == 0) | ((rows["n"] < 10) & (rows["attempt"] == 1)), "error"] = "no paint"
        return made[rows["n"] != 11]

    told = work("g", paint, args="n INT", max_attempts=2, backoff=FAST, **place)
    # Ten at first, one of them again; and one row is missing.
    assert (told.completed, told.failed) == (37, 12)
    outcomes = {int(o.id) - 1: o for o in history(place)}
    assert len(outcomes) == 40
    assert {n for n, o in outcomes.items() if o.state == "failed"} == {0, 1, 11}
    assert outcomes[0].error == "RowError: no paint (attempt 2 of 2)"
    assert outcomes[1].error == "PermanentJobError: no paint"
    assert outcomes[11].error.startswith("MissingRowError: the function returned no row")
    assert Counter(o.attempt for o in outcomes.values() if o.state == "completed") == {1: 29, 2: 8}
    with pelton.sync.open(address(place)) as jet:
        assert sorted(int(letter.outcome.id) - 1 for letter in jet.queue("g").dead_letters()) == [0, 1, 11]


@pytest.fixture
def file(tmp_path: Path) -> dict[str, str]:
    return {"path": str(tmp_path / "g.pelton")}


def test_jobs_of_a_killed_executor_come_back_by_lease(
    spark: SparkSession, file: dict[str, str], tmp_path: Path
) -> None:
    make(file, 100, lease=1.0)
    flag = tmp_path / "killed"

    def paint(rows: pd.DataFrame) -> pd.DataFrame:
        if rows["n"].max() >= 60 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[["id", "n"]]

    # A local master does not retry a task; a cluster retries it three times.
    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        work("g", paint, args="n INT", claim=20, **file)
    # The other task may live on for a while, and be killed while it holds jobs.
    work("g", paint, args="n INT", claim=20, **file)
    outcomes = history(file)
    assert sorted(o.value()["n"] for o in outcomes) == list(range(100))  # type: ignore[index]  # our own rows
    attempts = Counter(o.attempt for o in outcomes)
    assert attempts[1] >= 20
    assert attempts[2] >= 20


def test_a_function_that_raises_fails_its_batch_by_the_rules(spark: SparkSession, file: dict[str, str]) -> None:
    make(file, 6)

    def paint(rows: pd.DataFrame) -> pd.DataFrame:
        if (rows["attempt"] == 1).any():
            raise ConnectionError("no answer")
        raise KeyError(rows["last_error"][0])

    told = work("g", paint, tasks=1, backoff=FAST, permanent=KeyError, **file)
    assert (told.completed, told.failed) == (0, 12)
    assert {(o.state, o.attempt, o.error) for o in history(file)} == {
        ("failed", 2, "KeyError: 'ConnectionError: no answer'")
    }


def test_arguments_that_do_not_fit_fail_their_job_alone(spark: SparkSession, file: dict[str, str]) -> None:
    make(file, 2)
    rows = spark.createDataFrame([("many", "k1"), ("7", None)], "n STRING, key STRING")
    enqueue_from(rows, "g", "paint", **file)
    assert work("g", same, kind="arrow", args="n INT", **file).completed == 2
    errors = [o.error for o in history(file) if o.state == "failed"]
    assert len(errors) == 2
    assert all(error.startswith("JobArgumentsError") for error in errors)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rows: rows[["n"]], "keep the column id"),
        (lambda rows: rows.assign(id="77"), "not one of its jobs"),
        (lambda rows: None, "return a DataFrame"),
        (lambda rows: pd.concat([rows, rows]), "several rows of a job"),
    ],
)
def test_a_broken_contract_fails_the_task_and_no_job(
    spark: SparkSession, file: dict[str, str], function: Callable[..., Any], said: str
) -> None:
    make(file, 3)
    with pytest.raises(PySparkException, match=said):
        work("g", function, args="n INT", tasks=1, **file)
    assert history(file) == []
    with pelton.sync.open(address(file)) as jet:
        assert [info.attempt for info in jet.queue("g").jobs()] == [0, 0, 0]


def test_tasks_end_by_number_and_by_time(spark: SparkSession, file: dict[str, str]) -> None:
    make(file, 50)
    assert work("g", same, kind="arrow", tasks=2, max_jobs=10, claim=4, **file).completed == 20
    assert work("g", same, kind="arrow", tasks=1, duration=0.2, until_empty=False, **file).completed == 30


def test_what_cannot_be_is_refused_on_the_driver(spark: SparkSession, file: dict[str, str]) -> None:
    make(file, 0)
    for wanted, options in {
        "no queue 'h'": {"queue": "h"},
        "no option 'pfad'": {"pfad": "x"},
        "kind is 'polars'": {"kind": "polars"},
        "tasks is 0": {"tasks": 0},
        "max_attempts": {"max_attempts": 0},
        "name the stream": {"subject": "a.b"},
        "columns of every job": {"args": "attempt INT"},
    }.items():
        with pytest.raises(ConfigError, match=wanted):
            work(**{"queue": "g", "function": same, **file, **options})
