"""``pelton queue``, ``jobs``, ``dead``, ``workers`` and ``top``, run as from a shell, on a file and on a cluster."""

from __future__ import annotations

import json
import threading

import pytest

import pelton
from tests.cli.conftest import Run


@pytest.fixture
def garage(run: Run, address: str) -> list[str]:
    """A queue with two completed jobs, a dead letter and a job that waits; return the ids of all four."""
    with pelton.sync.open(address) as jet:
        garage = jet.queue("garage")

        @garage.job(max_attempts=1)
        def repair(car: str) -> str:
            if car == "wreck":
                raise ValueError("nothing left")
            return car

        ids = [repair.enqueue(car, key=car).id for car in ("a", "b", "wreck")]
        garage.work(until_empty=True, concurrency=1, handle_signals=False)
        return [*ids, repair.enqueue("c", key="c").id]


def test_a_queue_is_shown(run: Run, garage: list[str]) -> None:
    assert run("queue", "ls").lines[1].split()[:7] == ["garage", "1", "0", "0", "0", "2", "1"]
    (queue,) = run("queue", "ls", "--json").json
    assert (queue["pending"], queue["completed"], queue["failed"], queue["dead_letters"]) == (1, 2, 1, 1)
    shown = run("queue", "info", "garage").facts
    assert (shown["dead letters"], shown["exclusive"]) == ("1", "no")
    assert "run (median, 95 %, longest)" in shown
    assert run("queue", "info", "garage", "--json").json["per_minute"] == 3
    for words in (["queue", "info"], ["jobs", "ls"], ["dead", "ls"], ["workers"]):
        assert run(*words, "nothing", status=1)[1:] == (
            "",
            "pelton: there is no queue 'nothing': see 'pelton queue ls'\n",
        )


def test_jobs_are_listed_by_state_key_and_name(run: Run, garage: list[str]) -> None:
    assert [line.split()[:4] for line in run("jobs", "ls", "garage").lines[1:]] == [
        [garage[3], "repair", "c", "pending"]
    ]
    found = run("jobs", "ls", "garage", "--state", "completed", "--json").json
    assert [job["id"] for job in found] == [garage[1], garage[0]]
    assert [job["id"] for job in run("jobs", "ls", "garage", "--state", "failed", "--json").json] == [garage[2]]
    assert run("jobs", "ls", "garage", "--key", "z").lines == ["no jobs"]
    assert run("jobs", "ls", "garage", "--tenant", "acme").lines == ["no jobs"]
    assert "--tenant" in run("jobs", "ls", "garage", "--tenant", "acme", "--state", "failed", status=1).err
    assert run("jobs", "ls", "garage", "--job", "other").lines == ["no jobs"]
    assert run("jobs", "ls", "garage", "--state", "running").lines == ["no jobs"]
    assert len(run("jobs", "ls", "garage", "--state", "completed", "--limit", 1, "--json").json) == 1


def test_tenants_are_listed(run: Run, garage: list[str], address: str) -> None:
    assert run("queue", "tenants", "garage").lines == ["no tenant has jobs"]
    with pelton.sync.open(address) as jet:
        queue = jet.queue("garage")
        queue.weigh("acme", 4)
        for tenant in ("acme", "acme", "b"):
            queue.options(tenant=tenant).enqueue("repair", car="d")
    rows = [line.split() for line in run("queue", "tenants", "garage").lines]
    assert rows == [["tenant", "pending", "taken", "weight"], ["acme", "2", "0", "4"], ["b", "1", "0", "1"]]
    found = run("queue", "tenants", "garage", "--limit", "1", "--json").json
    assert found == [{"tenant": "acme", "pending": 2, "taken": 0, "weight": 4}]
    assert run("queue", "purge", "garage", "--tenant", "acme", "--force", "--json").json == {"purged": 2}


def test_a_job_is_shown(run: Run, garage: list[str]) -> None:
    assert run("jobs", "show", "garage", garage[0]).lines[0] == f"job {garage[0]}: repair"
    assert run("jobs", "show", "garage", garage[0], "--json").json["outcome"]["result"] == "a"
    failed = run("jobs", "show", "garage", garage[2]).out
    assert "ValueError: nothing left" in failed
    assert "Traceback" in failed
    assert run("jobs", "show", "garage", garage[3]).facts["state"] == "pending"
    assert run("jobs", "show", "garage", "999", status=1).out == ""


def test_dead_letters_are_shown_and_redriven(run: Run, garage: list[str]) -> None:
    assert run("dead", "ls", "garage").lines[1].split()[:3] == [garage[2], "repair", "wreck"]
    assert run("dead", "ls", "garage", "--job", "other").lines == ["no dead letters"]
    shown = run("dead", "show", "garage", garage[2]).out
    assert "wreck" in shown
    assert "Traceback" in shown
    assert run("dead", "show", "garage", garage[2], "--json").json["outcome"]["key"] == "wreck"
    assert run("dead", "show", "garage", "999", status=1).out == ""
    assert "--all" in run("dead", "redrive", "garage", status=1).err
    assert run("dead", "redrive", "garage", "999", status=1).out == ""
    done = run("dead", "redrive", "garage", garage[2], "--json").json
    assert list(done["redriven"]) == [garage[2]]
    assert run("dead", "ls", "garage", "--json").json == []
    assert len(run("jobs", "ls", "garage", "--json").json) == 2
    assert run("dead", "redrive", "garage", "--all").lines == ["queue garage has no dead letters"]


def test_workers_and_top(run: Run, garage: list[str]) -> None:
    (worker,) = run("workers", "garage", "--json").json
    assert (worker["ended"], worker["failed"]) == (3, 1)
    assert run("workers").lines[1].split()[0] == "garage"
    picture = run("top", "--every", "1ms", "--count", 2).lines
    assert [line.split()[0] for line in picture if line.startswith(("garage", "JOBS_garage >"))].count("garage") == 2
    one, two = (json.loads(line) for line in run("top", "--every", "1ms", "--count", 2, "--json").lines)
    assert one["queues"][0]["name"] == two["queues"][0]["name"] == "garage"
    assert one["published_per_second"] == {}
    assert two["published_per_second"]["JOBS_garage"] == 0


def test_a_job_is_added_and_tells_what_it_waits_for(run: Run, garage: list[str], address: str) -> None:
    done = run("jobs", "add", "garage", "repair", "--args", '{"car": "d"}', "--key", "d", "--tenant", "acme", "--json")
    shown = run("jobs", "show", "garage", done.json["id"])
    assert (shown.facts["arguments"], shown.facts["key"], shown.facts["tenant"]) == ('{"car":"d"}', "d", "acme")
    assert shown.facts["waits for"] == "a worker: none is there"
    found = run("jobs", "show", "garage", done.json["id"], "--json").json
    assert (found["arguments"], found["errors"], found["waits_for"]) == ({"car": "d"}, [], "a worker: none is there")
    later = run("jobs", "add", "garage", "repair", "--delay", "1h", "--args", '{"car": "e"}', "--json").json["id"]
    assert run("jobs", "show", "garage", later).facts["waits for"].startswith("its time: 20")
    run("queue", "pause", "garage", "--key", "d")
    assert run("jobs", "show", "garage", done.json["id"]).facts["waits for"] == "jobs of its key are paused"
    run("queue", "pause", "garage")
    assert run("jobs", "show", "garage", done.json["id"]).facts["waits for"] == "the queue is paused"
    assert "--args" in run("jobs", "add", "garage", "repair", "--args", "[1]", status=1).err
    assert "attempt 1, " in run("jobs", "show", "garage", garage[2]).out
    assert run("jobs", "show", "garage", garage[2]).facts["arguments"] == '{"car":"wreck"}'
    with pelton.sync.open(address) as jet:
        strict = jet.queue("strict", exclusive=True)
        first, second = (strict.options(key="k").enqueue("repair", car=car).id for car in "ab")
    facts = run("jobs", "show", "strict", second).facts
    assert facts["waits for"] == f"its key: job {first} comes first, which is pending"


def test_a_tenant_is_weighed(run: Run, garage: list[str]) -> None:
    assert run("queue", "weigh", "garage", "acme", 4).lines == ["tenant acme of queue garage: weight 4"]
    assert run("queue", "weigh", "garage", "acme", 2, "--json").json == {"tenant": "acme", "weight": 2}


def test_lists_are_filtered_by_time_and_error(run: Run, garage: list[str]) -> None:
    assert len(run("jobs", "ls", "garage", "--since", "1h", "--json").json) == 1
    assert run("jobs", "ls", "garage", "--since", "2100-01-01T00:00:00Z").lines == ["no jobs"]
    assert len(run("dead", "ls", "garage", "--since", "1h", "--error", "nothing left", "--json").json) == 1
    assert run("dead", "ls", "garage", "--error", "something else").lines == ["no dead letters"]
    assert "is no time" in run("dead", "ls", "garage", "--since", "yesterday", status=1).err
    assert run("dead", "errors", "garage").lines[1].split()[:2] == ["1", "repair"]
    (group,) = run("dead", "errors", "garage", "--json").json
    assert group["error"] == "ValueError: nothing left"


def test_a_running_job_that_was_cancelled_says_so(run: Run, address: str) -> None:
    begun, release = threading.Event(), threading.Event()
    with pelton.sync.open(address) as jet:
        queue = jet.queue("slow")

        @queue.job
        def repair() -> None:
            begun.set()
            release.wait(60)

        job_id = repair.enqueue().id
        work = threading.Thread(target=lambda: queue.work(until_empty=True, handle_signals=False))
        work.start()
        try:
            assert begun.wait(60)
            assert run("jobs", "show", "slow", job_id).facts["state"] == "running"
            run("jobs", "cancel", "slow", job_id)
            assert "was cancelled" in run("jobs", "show", "slow", job_id).facts["waits for"]
        finally:
            release.set()
            work.join(60)
