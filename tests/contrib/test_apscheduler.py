"""APScheduler's own scheduler on the job store: jobs outlive it, and are changed, paused and removed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("apscheduler")

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from pelton.contrib.apscheduler import PeltonJobStore
from pelton.contrib.process_store import close_process_stores, process_store

LATER = datetime(2100, 1, 1, tzinfo=UTC)
ran = threading.Semaphore(0)
seen: list[Any] = []


def note(word: str) -> None:
    seen.append(word)
    ran.release()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    seen.clear()
    yield str(tmp_path / "shop.pelton")
    close_process_stores()


def scheduler_on(store: str, **start: Any) -> BackgroundScheduler:
    scheduler = BackgroundScheduler(timezone=UTC, jobstores={"default": PeltonJobStore(store)})
    scheduler.start(**start)
    return scheduler


def test_jobs_outlive_their_scheduler(store: str) -> None:
    scheduler = scheduler_on(store, paused=True)
    scheduler.add_job(note, "interval", args=["every"], seconds=0.05, id="every", max_instances=5)
    scheduler.add_job(note, "date", args=["late"], run_date=LATER, id="late.1")
    scheduler.shutdown()
    close_process_stores()
    scheduler = scheduler_on(store)
    for _ in range(3):
        assert ran.acquire(timeout=20)
    assert [job.id for job in scheduler.get_jobs()] == ["every", "late.1"]
    scheduler.shutdown()
    assert set(seen) == {"every"}


def test_jobs_are_changed_paused_and_removed(store: str) -> None:
    scheduler = scheduler_on(store, paused=True)
    for number in range(3):
        scheduler.add_job(note, "date", args=[number], run_date=LATER - timedelta(days=number), id=f"job {number}")
    with pytest.raises(ConflictingIdError):
        scheduler.add_job(note, "date", args=[0], run_date=LATER, id="job 0")
    scheduler.add_job(note, "date", args=["again"], run_date=LATER, id="job 0", replace_existing=True)
    assert [job.id for job in scheduler.get_jobs()] == ["job 2", "job 1", "job 0"]
    scheduler.pause_job("job 2")
    assert [job.id for job in scheduler.get_jobs()] == ["job 1", "job 0", "job 2"]
    scheduler.resume_job("job 2")
    scheduler.modify_job("job 1", name="other")
    assert scheduler.get_job("job 1").name == "other"
    assert scheduler.get_job("job 9") is None
    scheduler.remove_job("job 2")
    with pytest.raises(JobLookupError):
        scheduler.remove_job("job 2")
    jobs = PeltonJobStore(store)
    jobs.start(scheduler, "default")
    assert jobs.get_next_run_time() == LATER - timedelta(days=1)
    assert [job.id for job in jobs.get_due_jobs(LATER)] == ["job 1", "job 0"]
    assert jobs.get_due_jobs(LATER - timedelta(days=2)) == []
    gone = scheduler.get_job("job 1")
    gone.id = "gone"
    with pytest.raises(JobLookupError):
        jobs.update_job(gone)
    scheduler.remove_all_jobs()
    assert scheduler.get_jobs() == []
    assert jobs.get_next_run_time() is None
    scheduler.shutdown()


def test_a_job_that_cannot_be_read_keeps_no_other_from_running(store: str, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = scheduler_on(store, paused=True)
    scheduler.add_job(note, "date", args=[1], run_date=LATER, id="one")
    process_store(store).blocking.bucket("apscheduler").put("two", b"no pickle")
    assert [job.id for job in scheduler.get_jobs()] == ["one"]
    assert "Unable to restore the job 'two'" in caplog.text
    scheduler.shutdown()
