"""``pelton kv``, ``locks``, ``elections`` and ``sql``, run as from a shell, on a file and on a cluster."""

from __future__ import annotations

import io
import json
import sys
import threading

import pytest

import pelton
from tests.cli.conftest import Run


def test_a_bucket_from_beginning_to_end(run: Run) -> None:
    assert run("kv", "ls").lines == ["no buckets"]
    assert run("kv", "add", "settings", "--history", 3, "--json").json["history"] == 3
    assert run("kv", "put", "settings", "colour", "red").lines == ["colour: revision 1"]
    assert run("kv", "put", "settings", "colour", "blue", "--revision", 1, "--json").json["revision"] == 2
    assert run("kv", "put", "settings", "colour", "green", "--revision", 1, status=1).out == ""
    assert run("kv", "put", "settings", "size", "7", "--revision", 0).out
    assert run("kv", "get", "settings", "colour").out.startswith("colour > blue  [2, ")
    assert run("kv", "get", "settings", "colour", "--raw", "--revision", 1).out == "red"
    assert run("kv", "get", "settings", "colour", "--json").json["text"] == "blue"
    assert run("kv", "get", "settings", "nothing", status=1).out == ""
    assert run("kv", "ls", "settings").lines == ["colour", "size"]
    assert run("kv", "ls", "settings", "*", "--json").json == ["colour", "size"]
    assert run("kv", "ls").lines[1].split()[:3] == ["settings", "2", "3"]
    assert [one["keys"] for one in run("kv", "ls", "--json").json] == [2]
    run("kv", "del", "settings", "colour")
    assert [one["operation"] for one in run("kv", "history", "settings", "colour", "--json").json] == [
        "put", "put", "delete",
    ]  # fmt: skip
    assert run("kv", "history", "settings", "colour").lines[-1].startswith("colour > (delete)")
    run("kv", "del", "settings", "colour", "--purge")
    assert len(run("kv", "history", "settings", "colour").lines) == 1
    assert "--force" in run("kv", "del", "settings", status=1).err
    run("kv", "del", "settings", "--force")
    assert run("kv", "ls", "settings", status=1).out == ""


def test_a_value_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class _Binary(io.StringIO):
        buffer = io.BytesIO(b"\xff\x00")

    run("kv", "add", "b")
    monkeypatch.setattr(sys, "stdin", _Binary())
    run("kv", "put", "b", "k")
    assert run("kv", "get", "b", "k").out.startswith("k > (hex) ff 00  [1, ")


def test_watching_shows_what_is_there_and_what_changes(run: Run, address: str) -> None:
    run("kv", "add", "b")
    run("kv", "put", "b", "k", "1")

    def change() -> None:
        with pelton.sync.open(address) as jet:
            jet.bucket("b").put("k", b"2")

    changing = threading.Thread(target=change)
    changing.start()
    seen = {json.loads(line)["text"] for line in run("kv", "watch", "b", "--json", "--count", 1).lines}
    changing.join()
    assert seen <= {"1", "2"}
    assert run("kv", "watch", "b", "k", "--count", 1).out.startswith("k > 2  [")


def test_holders_of_locks_and_elections_are_shown(run: Run, address: str) -> None:
    assert run("locks").lines == ["no lock is held"]
    assert run("elections").lines == ["no elections"]
    with (
        pelton.sync.open(address) as jet,
        jet.lock("car1") as held,
        jet.semaphore("bays", slots=2),
        jet.elect("boss", name="Ada"),
    ):
        semaphore, lock = sorted(run("locks", "--json").json, key=lambda one: one["name"])
        assert (lock["kind"], lock["token"], semaphore["slot"]) == ("lock", held.token, 0)
        assert [line.split()[:2] for line in run("locks").lines[1:]] == [["lock", "car1"], ["semaphore", "bays"]]
        assert run("elections").lines[1].split()[:2] == ["boss", "Ada"]
        (election,) = run("elections", "boss", "--json").json
        assert (election["leader"], election["bucket"]) == ("Ada", "ELECTION_boss")
        assert run("elections", "boss", "--bucket", "ELECTION_boss", "--json").json[0]["token"] == election["token"]
        assert run("elections", "other", "--json").json == []


def test_sql_reads_a_file_alone(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    statement = "SELECT name, length(config) > 10, NULL, x'ff' FROM streams WHERE name <> 'PELTON_AUDIT'"
    if "://" in address:
        assert "store file" in run("sql", statement, status=1).err
        return
    assert run("sql", statement).lines == ["orders  1  NULL  x'ff'"]
    assert run("sql", statement, "--json").json == [["orders", 1, None, "ff"]]
    assert run("sql", "SELECT 1 WHERE 0").lines == ["no rows"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 41 + 1"))
    assert run("sql").lines == ["42"]
    assert "jet.transaction" in run("sql", "DELETE FROM streams", status=1).err
    assert run("sql", "SELECT * FROM nothing", status=1).out == ""
