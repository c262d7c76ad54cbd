"""Options that no story of an operator needs, each for what it does, on a file and on a cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pelton
from pelton.api import KeyFile
from pelton.cli import stream_commands
from tests.cli.conftest import Run

_LIMIT_S = 30
SECOND = 10**9


@contextmanager
def beside(address: str, work: Callable[[pelton.Jet], Awaitable[None]]) -> Iterator[None]:
    """Let another connection work on the store, on a thread, until it is done; it begins at once."""

    async def run() -> None:
        async with asyncio.timeout(_LIMIT_S), pelton.open(address) as jet:
            await work(jet)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    yield
    thread.join(_LIMIT_S)
    assert not thread.is_alive()


# --- messages


def test_members_of_a_group_share_the_messages(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other member is there before the command's: it publishes until both have got something."""
    ready, subscribed, done = threading.Event(), threading.Event(), threading.Event()
    other: list[str] = []

    async def share(jet: pelton.Jet) -> None:
        async with await jet.subscribe("news.*", queue="readers") as member, await jet.subscribe("news.*") as alone:
            ready.set()
            await asyncio.to_thread(subscribed.wait, _LIMIT_S)
            published = 0
            while not (done.is_set() and other):
                await jet.backend.send(f"news.{published}", b"x")
                published += 1
                assert await alone.next(timeout=_LIMIT_S) is not None
                while (found := await member.next(timeout=0.02)) is not None:
                    other.append(found.subject)

    monkeypatch.setattr(stream_commands, "write_line", lambda *_, **__: subscribed.set())
    with beside(address, share):
        ready.wait(_LIMIT_S)
        words = ("sub", "news.*", "--queue", "readers", "--count", 1, "--timeout", f"{_LIMIT_S}s", "--json")
        ours = [json.loads(line)["subject"] for line in run(*words).lines]
        done.set()
    assert len(ours) == 1
    assert other
    assert not set(ours) & set(other)


def test_payloads_of_a_subscription_are_written_as_they_are(
    run: Run, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribed = threading.Event()

    async def publish(jet: pelton.Jet) -> None:
        await asyncio.to_thread(subscribed.wait, _LIMIT_S)
        await jet.backend.send("news.a", b"two\nlines")
        # Once this is answered, a server has read what was sent before.
        await jet.account_info()

    monkeypatch.setattr(stream_commands, "write_line", lambda *_, **__: subscribed.set())
    with beside(address, publish):
        assert run("sub", "news.a", "--count", 1, "--timeout", f"{_LIMIT_S}s", "--raw").out == "two\nlines"


def test_a_request_waits_for_as_many_answers_as_asked(run: Run, address: str) -> None:
    ready = threading.Event()

    async def answer(jet: pelton.Jet) -> None:
        async with await jet.subscribe("who") as asked:
            ready.set()
            for _ in range(2):
                found = await asked.next(timeout=_LIMIT_S)
                assert found is not None
                for name in (b"Ada", b"Grace"):
                    await jet.backend.send(found.reply, name)
                await jet.account_info()

    with beside(address, answer):
        ready.wait(_LIMIT_S)
        lines = run("request", "who", "", "--replies", 2, "--json").lines
        assert [json.loads(line)["text"] for line in lines] == ["Ada", "Grace"]
        # The third does not come: the others are shown, and a script learns of it.
        done = run("request", "who", "", "--replies", 3, "--timeout", "200ms", "--raw", status=1)
        assert (done.out, done.err) == ("AdaGrace", "no further answer\n")


def test_a_message_lives_as_long_as_it_may(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders", "--allow-msg-ttl")
    assert run("pub", "orders", "x", "--ttl", "2h", "--json").json["seq"] == 1
    assert run("stream", "get", "orders", 1, "--json").json["headers"]["Nats-TTL"] == ["2h0m0s"]
    run("stream", "add", "kept", "--subjects", "kept", "--no-allow-msg-ttl")
    assert run("pub", "kept", "x", "--ttl", "1h", status=1).out == ""


def test_a_value_lives_as_long_as_it_may(run: Run) -> None:
    words = ("--ttl", "7d", "--marker-ttl", "1h", "--description", "what is set")
    made = run("kv", "add", "settings", *words, "--json").json
    assert (made["ttl"], made["bucket"]) == (7 * 86_400, "settings")
    assert run("stream", "info", "KV_settings", "--json").json["config"]["description"] == "what is set"
    run("kv", "put", "settings", "colour", "red", "--ttl", "1h")
    assert run("stream", "get", "KV_settings", 1, "--json").json["headers"]["Nats-TTL"] == ["1h0m0s"]
    assert run("kv", "del", "settings", "colour", "--json").json == {"deleted": "colour"}
    assert run("kv", "get", "settings", "colour", status=1).out == ""
    run("kv", "add", "plain")
    assert "TTL" in run("kv", "put", "plain", "colour", "red", "--ttl", "1h", status=1).err


# --- streams and consumers


def test_every_property_of_a_stream_can_be_changed(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>", "--max-age", "1h")
    done = run(
        "stream", "edit", "orders", "--subjects", "orders.a,orders.b", "--subjects", "bills", "--description", "asked",
        "--discard", "new", "--max-msgs-per-subject", 4, "--max-bytes", "2M", "--max-msg-size", "8K",
        "--dupe-window", "20s", "--replicas", 1, "--discard-per-subject", "--allow-direct", "--allow-rollup",
        "--allow-msg-ttl", "--json",
    ).json  # fmt: skip
    expected = {
        "subjects": ["orders.a", "orders.b", "bills"], "description": "asked", "discard": "new",
        "max_msgs_per_subject": 4, "max_bytes": 2 << 20, "max_msg_size": 8 << 10, "duplicate_window": 20 * SECOND,
        "num_replicas": 1, "discard_new_per_subject": True, "allow_direct": True, "allow_rollup_hdrs": True,
        "allow_msg_ttl": True, "max_age": 3600 * SECOND,
    }  # fmt: skip
    assert {name: done["config"].get(name) for name in expected} == expected
    off = ("discard-per-subject", "allow-direct", "allow-rollup")
    run("stream", "edit", "orders", *(f"--no-{name}" for name in off), "--discard", "old", "--allow-schedules")
    config = run("stream", "info", "orders", "--json").json["config"]
    names = ("discard_new_per_subject", "allow_direct", "allow_rollup_hdrs", "allow_msg_schedules")
    # Scheduled messages replace others.
    assert [config.get(name, False) for name in names] == [False, False, True, True]


def test_a_stream_can_be_kept_from_purges(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders", "--max-consumers", 5)
    config = run("stream", "edit", "orders", "--deny-purge", "--max-consumers", 3, "--no-allow-rollup", "--json").json
    assert (config["config"]["deny_purge"], config["config"]["max_consumers"]) == (True, 3)
    assert run("stream", "purge", "orders", "-f", status=1).out == ""
    assert "deny purge" in run("stream", "edit", "orders", "--no-deny-purge", status=1).err


@pytest.mark.parametrize(
    "option",
    [
        ["--storage", "memory"],
        ["--retention", "workqueue"],
        ["--no-allow-msg-ttl"],
        ["--no-allow-schedules"],
        ["--no-deny-delete"],
    ],
    ids=lambda option: option[0].removeprefix("--"),
)
def test_what_a_server_does_not_change_is_told_and_stays(run: Run, option: list[str]) -> None:
    flags = ("--allow-msg-ttl", "--allow-schedules", "--deny-delete")
    run("stream", "add", "orders", "--subjects", "orders.>", *flags)
    before = run("stream", "info", "orders", "--json").json["config"]
    done = run("stream", "edit", "orders", *option, "--description", "changed", "--json", status=1)
    assert (done.out, len(done.err.splitlines())) == ("", 1)
    assert run("stream", "info", "orders", "--json").json["config"] == before


def test_a_stream_is_made_from_a_configuration(run: Run, tmp_path: Path) -> None:
    made = run("stream", "add", "orders", "--subjects", "orders.>", "--max-msgs", 9, "--deny-delete", "--json").json
    assert made["config"]["deny_delete"] is True
    (tmp_path / "orders.json").write_text(json.dumps(made))
    run("stream", "rm", "orders", "-f")
    again = run("stream", "add", "orders", "--config", "orders.json", "--max-msgs", 7, "--json").json
    assert again["config"] == {**made["config"], "max_msgs": 7}
    (tmp_path / "wrong.json").write_text("[]")
    assert "wrong.json" in run("stream", "add", "other", "--config", "wrong.json", status=1).err
    assert "none.json" in run("stream", "add", "other", "--config", "none.json", status=1).err


def test_what_is_off_already_can_be_said(run: Run) -> None:
    off = ("discard-per-subject", "allow-direct", "allow-rollup", "allow-msg-ttl", "allow-schedules")
    off += ("deny-delete", "deny-purge")
    run("stream", "add", "orders", "--subjects", "orders", *(f"--no-{name}" for name in off))
    run("stream", "add", "plain", "--subjects", "plain")
    configs = [run("stream", "info", name, "--json").json["config"] for name in ("orders", "plain")]
    for each, name in zip(configs, ("orders", "plain"), strict=True):
        assert (each.pop("name"), each.pop("subjects")) == (name, [name])
    assert configs[0] == configs[1]


def test_removals_have_json(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    run("pub", "orders", "x", "--count", 2)
    assert run("stream", "rmm", "orders", 1, "--force", "--json").json == {"deleted": 1}
    assert run("consumer", "add", "orders", "packer", "--json").json["name"] == "packer"
    assert run("consumer", "rm", "orders", "packer", "--force", "--json").json == {"deleted": "packer"}
    assert run("stream", "rm", "orders", "--force", "--json").json == {"deleted": "orders"}


def test_whoever_takes_messages_waits_for_the_first(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    run("consumer", "add", "orders", "packer")
    assert run("consumer", "next", "orders", "packer", "--wait", "50ms", status=1).err == "no message\n"

    async def publish(jet: pelton.Jet) -> None:
        await jet.publish("orders", b"late")

    with beside(address, publish):
        assert run("consumer", "next", "orders", "packer", "--wait", f"{_LIMIT_S}s", "--raw").out == "late"


def test_only_a_file_limits_what_is_pending_of_a_subject(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    words = ("consumer", "add", "orders", "packer", "--max-pending-per-subject", 1)
    if "://" in address:
        assert "max_ack_pending_per_subject" in run(*words, status=1).err
    else:
        run(*words)


def test_a_store_is_created_if_that_is_asked(tmp_path: Path, run: Run) -> None:
    new = tmp_path / "new.pelton"
    assert "no such file" in run("kv", "add", new, "settings", status=1).err
    run("kv", "add", new, "settings", "--create")
    assert run("kv", "ls", new, "settings", "--json").json == []


# --- copies


def test_both_sides_of_a_copy_may_be_encrypted(run: Run, address: str, tmp_path: Path) -> None:
    (tmp_path / "old.key").write_text("the old secret\n")
    (tmp_path / "new.key").write_text("the new secret\n")
    run("stream", "add", "orders", "--subjects", "orders")
    run("pub", "orders", "x", "--count", 3)
    one, two = tmp_path / "one.pelton", tmp_path / "two.pelton"
    run("copy", address, one, "--target-key-file", "old.key")
    assert "encrypted" in run("stream", "ls", one, status=1).err
    assert "encrypted" in run("copy", one, two, status=1).err
    run("copy", one, two, "--key-file", "old.key", "--target-key-file", "new.key")
    assert run("stream", "ls", two, "--key-file", "new.key", "--json").json[0]["messages"] == 3
    assert run("stream", "ls", two, "--key-file", "old.key", status=1).out == ""
    with pelton.sync.open(two, key=KeyFile("new.key")) as jet:
        assert jet.stream("orders").info().state.last_seq == 3


# --- queues


@pytest.fixture
def wrecks(run: Run, address: str) -> list[str]:
    """A queue with four dead letters, of two names and two keys, and four such jobs that wait."""
    with pelton.sync.open(address) as jet:
        garage = jet.queue("garage", exclusive=True)

        @garage.job(max_attempts=1)
        def repair(car: str) -> None:
            raise ValueError("nothing left")

        @garage.job(max_attempts=1)
        def wash(car: str) -> None:
            raise ValueError("no water")

        def all_of() -> list[str]:
            return [job.options(key=car).enqueue(car).id for job in (repair, wash) for car in ("a", "b")]

        dead = all_of()
        garage.work(until_empty=True, handle_signals=False)
        garage.schedule("nightly", wash, args=("a",), cron="0 3 * * *")
        return [*dead, *all_of()]


def ids_of(run: Run, *words: object) -> list[str]:
    return [one.get("id") or one["outcome"]["id"] for one in run(*words, "--json").json]


def test_dead_letters_are_chosen_by_key_and_by_name(run: Run, wrecks: list[str]) -> None:
    assert len(ids_of(run, "dead", "ls", "garage", "--limit", 3)) == 3
    assert sorted(run("dead", "redrive", "garage", "--key", "b", "--json").json["redriven"]) == sorted(
        [wrecks[1], wrecks[3]]
    )
    assert run("dead", "rm", "garage", "--job", "wash", "--force", "--json").json == {"deleted": [wrecks[2]]}
    assert list(run("dead", "redrive", "garage", "--job", "repair", "--json").json["redriven"]) == [wrecks[0]]
    assert ids_of(run, "dead", "ls", "garage") == []
    for verb in ("redrive", "rm"):
        assert run("dead", verb, "garage", "--key", "b").lines == ["queue garage has no dead letters with key b"]


def test_waiting_jobs_are_chosen_by_key_and_by_name(run: Run, wrecks: list[str]) -> None:
    assert ids_of(run, "jobs", "ls", "garage", "--key", "a") == [wrecks[4], wrecks[6]]
    done = run("jobs", "cancel", "garage", "--key", "a", "--force", "--json").json
    assert done == {"cancelled": {wrecks[4]: True, wrecks[6]: True}}
    assert "those with job wash among the 2" in run("queue", "purge", "garage", "--job", "wash", status=1).err
    assert run("queue", "purge", "garage", "--job", "wash", "--force", "--json").json == {"purged": 1}
    assert ids_of(run, "jobs", "ls", "garage") == [wrecks[5]]
    assert run("jobs", "cancel", "garage", "--key", "a").lines == ["queue garage has no unfinished jobs with key a"]
    run("queue", "purge", "garage", "--force")
    assert run("queue", "purge", "garage").lines == ["queue garage has no waiting jobs"]


def test_a_list_of_queues_shows_that_some_keys_are_paused(run: Run, wrecks: list[str]) -> None:
    run("queue", "pause", "garage", "--key", "a")
    assert run("queue", "ls", "--wide").lines[-1].endswith("paused keys: 1")
    run("queue", "pause", "garage", "--job", "wash")
    assert run("queue", "ls", "--wide").lines[-1].endswith("paused keys: 1, paused jobs: 1")
    run("queue", "pause", "garage")
    assert run("queue", "ls", "--wide").lines[-1].endswith(" paused")


def test_keys_and_how_many_jobs_each_has(run: Run, wrecks: list[str], address: str) -> None:
    run("jobs", "cancel", "garage", wrecks[4])
    assert run("jobs", "keys", "garage").lines[1:] == ["b       2", "a       1"]
    found = run("jobs", "keys", "garage", "--limit", 1, "--json").json
    assert (found["keys"], found["sampled"]) == ([{"key": "b", "jobs": 2}], 0)
    with pelton.sync.open(address) as jet:
        jet.queue("shared").options(key="a").enqueue("wash")
    assert "of the oldest 1 jobs" in run("jobs", "keys", "shared").lines[-1]
    assert run("jobs", "keys", "none", status=1).out == ""


def test_schedules_and_limits_are_taken_away(run: Run, wrecks: list[str]) -> None:
    assert run("cron", "pause", "garage", "nightly", "--json").json["paused"] is True
    assert run("cron", "rm", "garage", "nightly", "--force", "--json").json == {"deleted": "nightly"}
    run("limits", "set", "garage", "--job", "wash", "--concurrency", 1)
    run("limits", "set", "garage", "--per-key", "--concurrency", 1)
    assert run("limits", "rm", "garage", "--job", "wash", "--json").json == {"deleted": True}
    assert run("limits", "rm", "garage", "--per-key", "--json").json == {"deleted": True}
    assert run("limits", "ls", "--json").json == []


# --- what serves


def test_metrics_are_served_where_they_are_asked(address: str) -> None:
    command = [sys.executable, "-m", "pelton", "metrics", address, "--host", "127.0.0.2", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            url = running.stdout.readline().split()[-1]
            assert url.startswith("http://127.0.0.2:")
            with urllib.request.urlopen(url, timeout=_LIMIT_S) as answer:
                assert b"jetstream_server_total_streams" in answer.read()
        finally:
            running.terminate()
            running.wait(_LIMIT_S)


@pytest.mark.parametrize("address", ["file"], indirect=True)
def test_sql_that_takes_too_long_is_ended(run: Run) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    assert "0.1 s" in run("sql", endless, "--timeout", "100ms", status=1).err
    assert run("sql", "SELECT 1", "--timeout", "5s", "--json").json == [[1]]
