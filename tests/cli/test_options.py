"""What options of commands do that no other test needs, on a file and on a cluster."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import pelton
from tests.cli.conftest import Run

SECOND = 10**9


def test_a_stream_is_made_with_every_option(run: Run) -> None:
    run(
        "stream", "add", "orders", "--subjects", "orders.>", "--description", "what is asked for", "--retention",
        "limits", "--storage", "memory", "--discard", "new", "--discard-per-subject", "--max-msgs", 100,
        "--max-msgs-per-subject", 2, "--max-bytes", "1M", "--max-age", "1h", "--max-msg-size", "64K",
        "--max-consumers", 5, "--dupe-window", "30s", "--replicas", 1, "--allow-direct", "--allow-msg-ttl",
        "--deny-delete",
    )  # fmt: skip
    config = run("stream", "info", "orders", "--json").json["config"]
    expected = {
        "description": "what is asked for", "storage": "memory", "retention": "limits", "discard": "new",
        "discard_new_per_subject": True, "max_msgs": 100, "max_msgs_per_subject": 2, "max_bytes": 1 << 20,
        "max_age": 3600 * SECOND, "max_msg_size": 64 << 10, "max_consumers": 5, "duplicate_window": 30 * SECOND,
        "num_replicas": 1, "allow_direct": True, "allow_msg_ttl": True,
        "deny_delete": True,
    }  # fmt: skip
    assert {name: config.get(name) for name in expected} == expected
    run("stream", "edit", "orders", "--no-allow-direct", "--max-age", 0, "--max-msgs", 7)
    config = run("stream", "info", "orders", "--json").json["config"]
    assert (config.get("allow_direct", False), config.get("max_age", 0), config["max_msgs"]) == (False, 0, 7)
    run("stream", "add", "kept", "--subjects", "kept", "--deny-purge")
    run("stream", "add", "later", "--subjects", "later", "--allow-schedules")
    run("stream", "add", "rolled", "--subjects", "rolled", "--allow-rollup")
    assert run("stream", "info", "later", "--json").json["config"]["allow_msg_schedules"] is True
    assert run("stream", "info", "rolled", "--json").json["config"]["allow_rollup_hdrs"] is True
    assert run("stream", "purge", "kept", "-f", status=1).out == ""


def test_messages_before_a_sequence_are_removed(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    run("pub", "orders", "x", "--count", 5)
    run("stream", "purge", "orders", "--seq", 4, "-f")
    assert run("stream", "info", "orders", "--json").json["state"]["first_seq"] == 4


def test_a_consumer_is_made_with_every_option(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    own = ["--max-pending-per-subject", 1] if "://" not in address else []
    run(
        "consumer", "add", "orders", "slow", "--filter", "orders.a", "--ack", "explicit", "--deliver", "new", "--wait",
        "20s", "--max-deliver", 4, "--max-pending", 9, "--replay", "original", "--description", "slow one", *own,
    )  # fmt: skip
    config = run("consumer", "info", "orders", "slow", "--json").json["config"]
    expected = {
        "filter_subject": "orders.a", "ack_policy": "explicit", "deliver_policy": "new", "ack_wait": 20 * SECOND,
        "max_deliver": 4, "max_ack_pending": 9, "replay_policy": "original", "description": "slow one",
    }  # fmt: skip
    assert {name: config.get(name) for name in expected} == expected
    run("consumer", "add", "orders", "again", "--backoff", "1s", "--backoff", "5s", "--max-deliver", 3)
    found = run("consumer", "info", "orders", "again", "--json").json["config"]
    assert found["backoff"] == [SECOND, 5 * SECOND]
    run("consumer", "add", "orders", "pushed", "--target", "to.me")
    assert run("consumer", "info", "orders", "pushed", "--json").json["config"]["deliver_subject"] == "to.me"


def test_a_bucket_has_limits_and_tells_of_changes_alone(run: Run, address: str) -> None:
    run("kv", "add", "settings", "--max-value-size", "1K", "--max-bucket-size", "1M", "--replicas", 1)
    config = run("stream", "info", "KV_settings", "--json").json["config"]
    assert (config["max_bytes"], config["num_replicas"]) == (1 << 20, 1)
    run("kv", "put", "settings", "large", "x" * 1024)
    assert run("kv", "put", "settings", "big", "x" * 1025, status=1).out == ""
    run("kv", "put", "settings", "old", "1")
    stop = threading.Event()

    def write() -> None:
        with pelton.sync.open(address) as jet:
            bucket = jet.bucket("settings")
            while not stop.wait(0.05):
                bucket.put("new", b"2")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        lines = run("kv", "watch", "settings", "--updates-only", "--count", 1, "--json").lines
    finally:
        stop.set()
        writing.join()
    assert [json.loads(line)["key"] for line in lines] == ["new"]


def test_objects_go_in_and_come_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(300_000))
    info = run("object", "put", "files", "in.bin", "--create", "--description", "zeros", "--json").json
    assert (info["name"], info["size"]) == ("in.bin", 300_000)
    assert [one["name"] for one in run("object", "ls", "files", "--json").json] == ["in.bin"]
    assert run("object", "info", "files", "in.bin", "--json").json["digest"] == info["digest"]
    assert "zeros" in run("object", "info", "files", "in.bin").out
    assert run("object", "get", "files", "in.bin", "out.bin", "--json").json["size"] == 300_000
    assert (tmp_path / "out.bin").read_bytes() == bytes(300_000)
    assert "in.bin" in run("object", "ls", "files").out
    assert run("object", "cleanup", "files", "--json").json == {"removed": 0}
    assert run("object", "rm", "files", "in.bin", "--json").json == {"deleted": "in.bin"}
    assert run("object", "get", "files", "in.bin", status=1).out == ""
    assert run("object", "ls", "nothing", status=1).out == ""


@pytest.mark.parametrize("command", ["info", "locks", "elections", "workers", "top"])
def test_what_shows_a_store_as_a_whole_has_json(run: Run, command: str) -> None:
    assert run(command, "--json").json is not None
