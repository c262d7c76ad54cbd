"""Steering queues, jobs, dead letters and schedules from a shell, on a file and on a cluster."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest

import pelton
from tests.cli.conftest import Run

_FIVE = ("a", "b", "wreck", "c", "d")


@pytest.fixture
def garage(run: Run, address: str) -> list[str]:
    """A queue that has run two jobs, one of which failed, with three that wait; return the ids of all five."""
    with pelton.sync.open(address) as jet:
        garage = jet.queue("garage")

        @garage.job(max_attempts=1)
        def repair(car: str) -> str:
            if car == "wreck":
                raise ValueError("nothing left")
            return car

        @garage.job
        def wash(car: str) -> str:
            return car

        ids = [repair.enqueue(car, key=car).id for car in ("a", "wreck")]
        garage.work(until_empty=True, handle_signals=False)
        ids += [repair.enqueue(car, key=car).id for car in ("b", "c")]
        garage.schedule("nightly", wash, args=("a",), cron="0 3 * * *")
        return [*ids, wash.enqueue("d").id]


def _work(address: str) -> None:
    with pelton.sync.open(address) as jet:
        garage = jet.queue("garage")

        @garage.job
        def repair(car: str) -> str:
            return car

        @garage.job
        def wash(car: str) -> str:
            return car

        garage.work(until_empty=True, handle_signals=False)


def test_a_queue_is_paused_and_resumed(run: Run, garage: list[str]) -> None:
    assert run("queue", "pause", "garage").lines == ["queue garage: paused"]
    assert run("queue", "ls").lines[1].split()[-1] == "paused"
    run("queue", "pause", "garage", "--key", "b")
    paused = run("queue", "pause", "garage", "--job", "wash", "--json").json
    assert (paused["paused"], paused["paused_keys"], paused["paused_jobs"]) == (True, ["b"], ["wash"])
    assert run("queue", "info", "garage").facts["paused keys"] == "b"
    run("queue", "resume", "garage")
    run("queue", "resume", "garage", "--key", "b")
    resumed = run("queue", "resume", "garage", "--job", "wash", "--json").json
    assert (resumed["paused"], resumed["paused_keys"], resumed["paused_jobs"]) == (False, [], [])
    assert run("queue", "pause", "nothing", status=1).out == ""
    assert "no worker is called 'none'" in run("queue", "stop-worker", "garage", "none", status=1).err
    assert run("queue", "ls", "--names").lines == ["garage"]


def test_a_queue_is_emptied_and_removed(run: Run, garage: list[str]) -> None:
    assert "3 waiting jobs" in run("queue", "purge", "garage", status=1).err
    assert run("queue", "purge", "garage", "--key", "b", "-f").lines == ["1 jobs cancelled"]
    assert run("queue", "purge", "garage", "--force", "--json").json == {"purged": 2}
    assert run("jobs", "ls", "garage").lines == ["no jobs"]
    assert "--force" in run("queue", "rm", "garage", status=1).err
    assert run("queue", "rm", "garage", "--force", "--json").json == {"deleted": "garage"}
    assert run("queue", "ls").lines == ["no queues"]


def test_a_signal_is_sent_to_a_job_once(run: Run, garage: list[str]) -> None:
    send = ("jobs", "send", "garage", garage[-1], "approved", "--value", '{"by": "ann"}', "--msg-id", "1")
    assert run(*send).lines == [f"signal approved to job {garage[-1]} is sent"]
    assert run(*send, "--json").json == {"sent": False}
    assert "--value is no JSON" in run(*send[:6], "ann", status=1).err
    run("jobs", "cancel", "garage", garage[-1])
    assert "has ended (cancelled)" in run(*send, status=1).err


def test_whoever_sits_at_the_terminal_is_asked(
    run: Run, garage: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal:
        def __init__(self, text: str) -> None:
            self.text = text

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.text

    for text, status in (("\n", 1), ("no\n", 1), ("Y\n", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        done = run("jobs", "cancel", "garage", "--all", status=status)
        assert "Really cancel 3 jobs of queue garage? (y/N)" in done.err


def test_jobs_are_cancelled(run: Run, garage: list[str]) -> None:
    assert run("jobs", "cancel", "garage", garage[2], "--reason", "sold").lines == [f"job {garage[2]}: cancelled"]
    shown = run("jobs", "show", "garage", garage[2], "--json").json
    assert (shown["state"], shown["last_error"]) == ("cancelled", "it was cancelled: sold")
    assert run("jobs", "cancel", "garage", garage[0], status=1).lines == [f"job {garage[0]}: had ended before"]
    assert "say which" in run("jobs", "cancel", "garage", status=1).err
    assert "only one of these" in run("jobs", "cancel", "garage", garage[3], "--all", status=1).err
    assert "with job repair" in run("jobs", "cancel", "garage", "--job", "repair", status=1).err
    done = run("jobs", "cancel", "garage", "--job", "repair", "-f", "--json").json
    assert done == {"cancelled": {garage[3]: True}}
    assert run("jobs", "cancel", "garage", "999", "--json", status=1).json == {"cancelled": {}}
    assert list(run("jobs", "cancel", "garage", "--state", "pending", "-f", "--json").json["cancelled"]) == [garage[4]]


def test_jobs_are_tried_again_and_waited_for(run: Run, garage: list[str], address: str) -> None:
    refused = run("jobs", "retry", "garage", garage[0], "9999", "first", garage[2], status=1)
    assert refused.out == ""
    assert refused.err.splitlines() == [
        f"pelton: job {garage[0]} of queue 'garage' is no dead letter: it is completed, not failed",
        (
            "pelton: queue 'garage' has no job '9999': it was never enqueued here, or its history was cleaned; "
            "see 'pelton jobs ls' and 'pelton dead ls'"
        ),
        "pelton: queue 'garage': 'first' is not a job id: an id is text such as '7', see 'pelton jobs ls'",
        f"pelton: job {garage[2]} of queue 'garage' is no dead letter: it is pending, not failed",
    ]
    assert "it is completed, not failed" in run("dead", "show", "garage", garage[0], status=1).err
    assert "JSON" in run("jobs", "retry", "garage", garage[1], "--args", "x", status=1).err
    again = run("jobs", "retry", "garage", garage[1], "--args", '{"car": "new"}', "--json").json["redriven"]
    waited = run("jobs", "wait", "garage", again[garage[1]], "--timeout", "10ms", status=1).err
    assert "has not ended within 0.01 s; it was not cancelled" in waited
    assert "was redriven or removed already" in run("dead", "redrive", "garage", garage[1], status=1).err
    worker = threading.Thread(target=_work, args=(address,))
    worker.start()
    done = run("jobs", "wait", "garage", again[garage[1]], garage[2], "--timeout", "60s", "--json").json
    worker.join()
    assert [(one["state"], one["result"]) for one in done] == [("completed", "new"), ("completed", "b")]
    assert run("jobs", "wait", "garage", garage[0], garage[1], status=1).lines == [
        f"job {garage[0]}: completed",
        f"job {garage[1]}: failed: ValueError: nothing left (attempt 1 of 1)",
    ]
    assert run("jobs", "wait", "garage", "999", status=1).out == ""


def test_dead_letters_are_removed(run: Run, garage: list[str]) -> None:
    assert run("dead", "ls", "garage", "--key", "other").lines == ["no dead letters"]
    assert "1 dead letters" in run("dead", "rm", "garage", "--all", status=1).err
    assert run("dead", "rm", "garage", "999", "-f", status=1).lines == ["0 dead letters removed"]
    assert run("dead", "rm", "garage", "--key", "wreck", "-f", "--json").json == {"deleted": [garage[1]]}
    assert run("dead", "ls", "garage").lines == ["no dead letters"]


def test_schedules_are_shown_and_steered(run: Run, garage: list[str]) -> None:
    assert run("cron", "ls", "garage").lines[1].split()[:5] == ["garage", "nightly", "wash", "0", "0"]
    (schedule,) = run("cron", "ls", "--json").json
    assert (schedule["queue"], schedule["name"], schedule["args"]) == ("garage", "nightly", {"car": "a"})
    assert schedule["next_due"] > 0
    run("cron", "pause", "garage", "nightly")
    assert run("cron", "ls").lines[1].split()[-1] == "paused"
    job = run("cron", "run", "garage", "nightly", "--json").json["id"]
    assert run("jobs", "show", "garage", job, "--json").json["job"] == "wash"
    assert run("cron", "resume", "garage", "nightly", "--json").json["paused"] is False
    for verb in ("pause", "resume", "run", "rm"):
        assert run("cron", verb, "garage", "nothing", status=1).out == ""
    assert "--force" in run("cron", "rm", "garage", "nightly", status=1).err
    run("cron", "rm", "garage", "nightly", "-f")
    assert run("cron", "ls", "garage").lines == ["no schedules"]


def test_a_request_is_answered(run: Run, address: str) -> None:
    assert "no answer" in run("request", "upper", "hi", "--timeout", "100ms", status=1).err
    ready, told = threading.Event(), threading.Event()

    async def answer() -> None:
        async with pelton.open(address) as jet, await jet.subscribe("upper") as asked:
            ready.set()
            for text in (b"first", b"second"):
                found = await asked.next(timeout=20)
                assert found is not None
                await jet.backend.send(found.reply, text + b" " + found.data.upper())
            await asyncio.to_thread(told.wait, 20)

    answering = threading.Thread(target=lambda: asyncio.run(answer()))
    answering.start()
    ready.wait(20)
    assert json.loads(run("request", "upper", "hi", "-H", "K: v", "--json").out)["text"] == "first HI"
    assert run("request", "upper", "ho", "--raw").out == "second HO"
    told.set()
    answering.join()


def test_a_stream_answers_a_request(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    answer = json.loads(run("request", "orders.1", "a spade", "--raw").out)
    assert (answer["stream"], answer["seq"]) == ("orders", 1)
    assert run("stream", "rmm", "orders", 1, "-f").lines == ["message 1 removed"]
    assert run("stream", "get", "orders", 1, status=1).out == ""


@pytest.fixture
def flows(run: Run, address: str) -> list[str]:
    """A flow that has failed and one that waits for its time; return the ids of both."""
    with pelton.sync.open(address) as jet:
        pages = jet.queue("pages")

        @pages.job(max_attempts=1)
        def fetch(url: str) -> str:
            raise ValueError("no such page")

        ids = []
        for name, delay in (("now", None), ("later", 3600)):
            flow = pages.new_flow(name)
            flow.add(fetch, flow.options(delay=delay).add(fetch, "a").result)
            ids.append(flow.enqueue().id)
        working = threading.Thread(target=lambda: pages.work(handle_signals=False))
        working.start()
        assert pages.flow(ids[0]).outcome(timeout=30).state == "failed"
        pages.stop()
        working.join()
        return ids


def test_flows_are_shown_and_cancelled(run: Run, flows: list[str]) -> None:
    assert [line.split()[:4] for line in run("flow", "ls", "pages").lines[1:]] == [
        [flows[1], "later", "running", "2"], [flows[0], "now", "failed", "2"],
    ]  # fmt: skip
    assert [one["id"] for one in run("flow", "ls", "pages", "--state", "failed", "--json").json] == [flows[0]]
    assert len(run("flow", "ls", "pages", "--limit", 1, "--json").json) == 1
    assert len(run("flow", "ls", "pages", "--since", "1h", "--json").json) > 1
    assert run("flow", "ls", "pages", "--since", "2100-01-01T00:00:00Z", "--json").json == []
    shown = run("flow", "show", "pages", flows[0])
    assert shown.lines[0] == f"flow {flows[0]}: now"
    assert shown.facts["state"] == "failed"
    assert [line.split()[:3] for line in shown.lines[-2:]] == [["0", "fetch", "failed"], ["1", "fetch", "cancelled"]]
    assert run("flow", "show", "pages", flows[1], "--json").json["nodes"][1]["after"] == [0]
    assert run("flow", "cancel", "pages", flows[0], status=1).lines == [f"flow {flows[0]}: had ended before"]
    done = run("flow", "cancel", "pages", flows[1], "--reason", "no need", "--json").json
    assert done == {"cancelled": {flows[1]: True}}
    for words in (["flow", "show", "pages", "none"], ["flow", "cancel", "pages", "none"], ["flow", "ls", "none"]):
        assert run(*words, status=1).out == ""


def test_limits_are_set_shown_and_taken_away(run: Run, garage: list[str]) -> None:
    assert run("limits", "ls").lines == ["no limits"]
    limit = run("limits", "set", "garage", "--concurrency", 3, "--json").json
    assert (limit["concurrency"], limit["running"], limit["starts"]) == (3, 0, None)
    run("limits", "set", "garage", "--job", "repair", "--per-key", "--rate", 10, "--per", "1m", "--burst", 2)
    assert run("limits", "ls", "garage").lines[1].split() == ["garage", "all", "3", "0"]
    assert "repair, each key" in run("limits", "ls").lines[2]
    assert "10 in 60 s, 2 at once" in run("limits", "ls").lines[2]
    assert run("limits", "rm", "garage").lines == ["limit of queue garage: taken away"]
    assert run("limits", "rm", "garage", "--json", status=1).json == {"deleted": False}
    assert [one["job"] for one in run("limits", "ls", "--json").json] == ["repair"]
    assert "concurrency" in run("limits", "set", "garage", status=1).err
    assert run("limits", "set", "none", "--concurrency", 1, status=1).out == ""
