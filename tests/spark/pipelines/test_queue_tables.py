"""History, figures and dead letters of a queue, compared with the queue's own views."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

import pelton
from pelton.spark import pipelines
from pelton.spark.pipelines.analytics import duration_text
from tests.spark.pipelines.worked import work

VIEWPORT = '<meta name="viewport" content="width=device-width,initial-scale=1">'


def nearest_rank(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * round(share * 100) // 100) - 1, 0)]


def test_history_and_figures_are_those_of_the_queue(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "g.pelton"
    outcomes = work(store)
    history = pipelines.history(spark, "garage", path=str(store)).cache()
    assert sorted((row.id, row.job, row.key, row.state, row.attempt, row.error) for row in history.collect()) == sorted(
        (one.id, one.job, one.key, one.state, one.attempt, one.error) for one in outcomes
    )
    metrics = pipelines.job_metrics(history)
    summary = metrics.summary.first()
    waits = [(one.started_at - one.enqueued_at) / 1e9 for one in outcomes]
    runs = [(one.finished_at - one.started_at) / 1e9 for one in outcomes]
    assert (summary.jobs, summary.completed, summary.failed, summary.cancelled) == (40, 33, 6, 1)
    assert summary.retries == sum(one.attempt - 1 for one in outcomes) == 9
    assert summary.retried == 6
    for share in (0.5, 0.95, 0.99):
        assert summary[f"wait_p{share * 100:.0f}"] == pytest.approx(nearest_rank(waits, share))
        assert summary[f"run_p{share * 100:.0f}"] == pytest.approx(nearest_rank(runs, share))
    seconds = (max(one.finished_at for one in outcomes) - min(one.enqueued_at for one in outcomes)) / 1e9
    assert summary.per_second == pytest.approx(40 / seconds, rel=1e-3)

    by_key: dict[str, list[float]] = {}
    for one, wait in zip(outcomes, waits, strict=True):
        if one.key:
            by_key.setdefault(one.key, []).append(wait)
    means = [sum(found) / len(found) for found in by_key.values()]
    assert summary["keys"] == 3
    assert summary.fairness == pytest.approx(sum(means) ** 2 / (3 * sum(mean**2 for mean in means)))
    assert {row.key: row.jobs for row in metrics.by_key.collect()} == {"k0": 10, "k1": 10, "k2": 10}

    assert {row.job: (row.jobs, row.retries) for row in metrics.by_job.collect()} == {
        "repair": (30, 9),
        "wash": (10, 0),
    }
    causes = [(row.job, row.cause, row.failures) for row in metrics.causes.collect()]
    assert causes == [
        ("repair", "PermanentJobError: car # has no wheel '…'", 3),
        ("repair", "ValueError: never works", 3),
    ]
    steps = metrics.over_time.collect()
    assert sum(row.jobs for row in steps) == 40
    assert sum(row.failed for row in steps) == 6

    page = tmp_path / "report.html"
    pipelines.report(metrics, page, title="The <garage>")
    written = page.read_text()
    ElementTree.fromstring(written.partition(">")[2].replace('<meta charset="utf-8">', "").replace(VIEWPORT, ""))
    assert "The &lt;garage&gt;" in written
    for figure in (
        "<b>40</b><span>jobs ended",
        "<b>9</b><span>retries",
        f"<b>{summary.fairness:.3f}</b><span>fairness among 3 keys",
        f"<b>{duration_text(summary.wait_p95)}</b><span>wait, p95",
        "<td>repair</td><td>30</td><td>24</td><td>6</td><td>0</td><td>9</td>",
        "ValueError: never works",
    ):
        assert figure in written, figure
    assert "http" not in written
    history.unpersist()


def test_dead_letters_are_grouped_chosen_and_driven_again(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "g.pelton"
    work(store)
    letters = pipelines.dead_letters(spark, "garage", path=str(store))
    counted = pipelines.by_cause(letters).collect()
    assert [(row.job, row.letters) for row in counted] == [("repair", 3), ("repair", 3)]
    rows = {row.id: row for row in letters.collect()}
    assert Counter(row.attempts for row in rows.values()) == {1: 3, 3: 3}
    assert {row.args for row in rows.values()} == {f'{{"car":{n}}}' for n in (3, 5, 13, 15, 23, 25)}

    chosen = letters.where("cause LIKE 'ValueError%'")
    told: list[tuple[int, int]] = []
    driven = pipelines.redrive(chosen, "garage", path=str(store), progress=lambda *at: told.append(at))
    assert driven == (3, 0)
    assert told == [(3, 3)]
    left = letters.collect()
    assert {row.cause.partition(":")[0] for row in left} == {"PermanentJobError"}
    again = spark.createDataFrame([(id,) for id in rows], "id STRING")
    assert pipelines.redrive(
        again.where(f"id NOT IN ({','.join(row.id for row in left)})"), "garage", path=str(store)
    ) == (0, 3)
    with pelton.sync.open(store) as jet:
        waiting = list(jet.queue("garage").jobs())
    assert sorted(job.key for job in waiting) == ["k0", "k1", "k2"]


def test_a_queue_that_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "g.pelton"):
        pass
    with pytest.raises(pelton.ConfigError, match="no queue 'garage' in"):
        pipelines.history(spark, "garage", path=str(tmp_path / "g.pelton"))
    with pytest.raises(pelton.ConfigError, match="not the history"):
        pipelines.job_metrics(spark.range(1))


def test_a_queue_without_ended_jobs_has_a_report(spark: SparkSession, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "g.pelton") as jet:
        jet.queue("garage")
    history = pipelines.history(spark, "garage", path=str(tmp_path / "g.pelton"))
    pipelines.report(pipelines.job_metrics(history), tmp_path / "r.html")
    assert "No job has ended yet" in (tmp_path / "r.html").read_text()


def test_a_job_that_never_started_has_no_times_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    store = str(tmp_path / "g.pelton")
    with pelton.sync.open(store) as jet:
        queue = jet.queue("garage")
        gone = queue.options(key="a").enqueue("repair")
        assert queue.cancel(gone.id)
    history = pipelines.history(spark, "garage", path=store)
    (row,) = history.collect()
    assert (row.state, row.started_at, row.wait_s, row.run_s) == ("cancelled", None, None, None)
    metrics = pipelines.job_metrics(history)
    summary = metrics.summary.first()
    assert (summary.jobs, summary.cancelled, summary.retries, summary.wait_p50) == (1, 1, 0, None)
    assert 0 <= summary.seconds < 60
    pipelines.report(metrics, tmp_path / "r.html")
    assert "1 jobs ended" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0.0000123, "12 µs"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (90.0, "90 s"), (150.0, "2.5 min"),
     (7200.0, "2 h"), (0.0, "0 µs")],
)  # fmt: skip
def test_durations_are_written_as_people_do(seconds: float | None, words: str) -> None:
    assert duration_text(seconds) == words
