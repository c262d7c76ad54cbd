"""``pelton stream``, ``consumer``, ``pub``, ``sub`` and ``info``, run as from a shell, on a file and on a cluster."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import pytest

import pelton
from pelton.cli.main import main
from tests.cli.conftest import Run


def test_a_stream_from_beginning_to_end(run: Run, tmp_path: Path) -> None:
    assert run("stream", "ls").lines == ["no streams"]
    run(
        "stream",
        "add",
        "orders",
        "--subjects",
        "orders.>,bills",
        "--max-age",
        "7d",
        "--max-bytes",
        "10M",
        "--allow-direct",
    )
    info = run("stream", "info", "orders", "--json").json
    assert info["config"]["subjects"] == ["orders.>", "bills"]
    assert (info["config"]["max_age"], info["config"]["max_bytes"]) == (7 * 86_400 * 10**9, 10 << 20)
    assert info["config"]["allow_direct"] is True
    for number in range(5):
        run("pub", f"orders.{number}", f"body {number}")
    listed = run("stream", "ls").lines
    assert listed[0].split() == ["stream", "kind", "messages", "size", "subjects", "consumers", "last", "message"]
    assert listed[1].split()[:3] == ["orders", "stream", "5"]
    assert run("stream", "ls", "--names").lines == ["orders"]
    assert run("stream", "ls", "--names", "--subject", "nothing").lines == []
    assert [one["name"] for one in run("stream", "ls", "--json").json] == ["orders"]
    shown = run("stream", "info", "orders").facts
    assert (shown["messages"], shown["max age"]) == ("5", "168h0m0s")
    run("stream", "edit", "orders", "--max-msgs", 100, "--no-allow-direct")
    config = run("stream", "info", "orders", "--json").json["config"]
    assert (config["max_msgs"], config["allow_direct"], config["max_bytes"]) == (100, False, 10 << 20)
    (tmp_path / "config.json").write_text(json.dumps({"config": {**config, "max_msgs": 50}}))
    assert run("stream", "edit", "orders", "--config", "config.json", "--json").json["config"]["max_msgs"] == 50
    assert "If so, add --force" in run("stream", "purge", "orders", status=1).err
    assert run("stream", "purge", "orders", "--subject", "orders.1", "-f").lines == ["1 messages removed"]
    assert run("stream", "purge", "orders", "--keep", 1, "-f", "--json").json == {"purged": 3}
    assert "If so, add --force" in run("stream", "rm", "orders", status=1).err
    run("stream", "rm", "orders", "--force")
    assert run("stream", "info", "orders", status=1).out == ""


def test_messages_are_shown(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    run("pub", "orders.a", "one", "-H", "Kind: first", "-H", "Other: x", "--msg-id", "m1")
    assert "had it already" in run("pub", "orders.a", "one", "--msg-id", "m1").out
    run("pub", "orders.b", "two\nlines")
    assert run("pub", "orders.a", "three", "--json").json["seq"] == 3
    shown = run("stream", "get", "orders", 1).lines
    assert shown[0].startswith("seq: 1  subject: orders.a  time: ")
    assert "  Kind: first" in shown
    assert shown[-1] == "  one"
    found = run("stream", "get", "orders", "--last-for", "orders.a", "--json").json
    assert (found["seq"], found["text"], found["data"]) == (3, "three", "dGhyZWU=")
    assert run("stream", "get", "orders", 2, "--raw").out == "two\nlines"
    assert run("stream", "get", "orders", 9, status=1).out == ""
    assert "SEQ" in run("stream", "get", "orders", status=1).err
    tail = run("stream", "tail", "orders", "-n", 2, "--json").lines
    assert [json.loads(line)["seq"] for line in tail] == [2, 3]
    tail = run("stream", "tail", "orders", "-n", 1, "--subject", "orders.b", "--json").lines
    assert [json.loads(line)["seq"] for line in tail] == [2]


def test_the_newest_messages_are_found_behind_gaps_and_others(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders.*")
    with pelton.sync.open(address) as jet:
        jet.publish_batch([(f"orders.{'rare' if number in (3, 40, 41) else number % 2}", b"") for number in range(80)])
        for seq in (*range(10, 30), 79):
            jet.stream("orders").delete_message(seq)

    def tail(*words: object) -> list[int]:
        return [json.loads(line)["seq"] for line in run("stream", "tail", "orders", *words, "--json").lines]

    assert tail("-n", 4) == [76, 77, 78, 80]
    assert tail("-n", 60) == [*range(1, 10), *range(30, 79), 80]
    assert tail("-n", 2, "--subject", "orders.rare") == [41, 42]
    assert tail("-n", 9, "--subject", "orders.rare") == [4, 41, 42]
    assert tail("-n", 3, "--subject", "orders.1") == [76, 78, 80]
    assert tail("-n", 3, "--subject", "orders.none") == tail("-n", 0) == []


def test_a_payload_that_is_no_text_is_shown_in_hexadecimal_digits(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    with pelton.sync.open(address) as jet:
        jet.publish("orders", b"\xff\x1b\x00")
    assert run("stream", "get", "orders", 1).lines[-1] == "  (hex) ff 1b 00"
    assert run("stream", "get", "orders", 1, "--json").json["text"] is None


def test_a_payload_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class _Binary(io.StringIO):
        buffer = io.BytesIO(b"\x00\x01")

    run("stream", "add", "orders", "--subjects", "orders")
    monkeypatch.setattr(sys, "stdin", _Binary())
    run("pub", "orders", "-")
    assert run("stream", "get", "orders", 1, "--json").json["data"] == "AAE="


def test_following_a_stream_shows_what_is_published_meanwhile(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    run("pub", "orders", "1")

    def publish() -> None:
        with pelton.sync.open(address) as jet:
            jet.publish("orders", b"2")

    publisher = threading.Thread(target=publish)
    publisher.start()
    found = run("stream", "tail", "orders", "--follow", "--every", "10ms", "--until", 2, "--json").lines
    publisher.join()
    assert [json.loads(line)["text"] for line in found] == ["1", "2"]


def test_a_consumer_from_beginning_to_end(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    for number in range(4):
        run("pub", f"orders.{number}", str(number))
    assert run("consumer", "ls").lines == ["no consumers"]
    run("consumer", "add", "orders", "worker", "--filter", "orders.>", "--wait", "1m", "--max-deliver", 3)
    config = run("consumer", "info", "orders", "worker", "--json").json["config"]
    assert (config["filter_subject"], config["ack_wait"], config["max_deliver"]) == ("orders.>", 60 * 10**9, 3)
    assert "last delivery" not in run("consumer", "info", "orders", "worker").facts
    taken = run("consumer", "next", "orders", "worker").lines
    assert taken[0].startswith("seq: 1  subject: orders.0")
    assert taken[-1] == "  0"
    assert json.loads(run("consumer", "next", "orders", "worker", "--no-ack", "--json").lines[0])["text"] == "1"
    assert run("consumer", "next", "orders", "worker", "--nak", "--raw").out == "2"
    (listed,) = run("consumer", "ls", "orders", "--json").json
    assert (listed["pending"], listed["ack_floor"], listed["lag"]) == (1, 1, 3)
    assert run("consumer", "ls").lines[1].split()[:2] == ["orders", "worker"]
    assert run("consumer", "ls", "orders", "--names").lines == ["worker"]
    assert run("consumer", "info", "orders", "worker").facts["ack floor"] == "1"
    assert run("consumer", "pause", "orders", "worker", "1h", "--json").json["paused"] is True
    assert "paused for:" in run("consumer", "info", "orders", "worker").out
    assert "paused" not in run("consumer", "resume", "orders", "worker", "--json").json
    assert "If so, add --force" in run("consumer", "rm", "orders", "worker", status=1).err
    run("consumer", "rm", "orders", "worker", "-f")
    assert run("consumer", "info", "orders", "worker", status=1).out == ""


def test_subscribers_see_what_is_published(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher starts when the command says that it has subscribed."""
    from pelton.cli import stream_commands

    def publish() -> None:
        with pelton.sync.open(address) as jet:
            jet.create_stream("news", subjects=["news.>"])
            jet.publish("news.a", b"1", headers={"Kind": "first"})
            jet.publish("news.b", b"2")

    publisher = threading.Thread(target=publish)
    monkeypatch.setattr(stream_commands, "write_line", lambda *_, **__: publisher.start())
    found = [json.loads(line) for line in run("sub", "news.>", "--count", 2, "--timeout", "20s", "--json").lines]
    publisher.join()
    assert [(one["subject"], one["text"]) for one in found] == [("news.a", "1"), ("news.b", "2")]
    assert found[0]["headers"]["Kind"] == ["first"]
    monkeypatch.undo()
    monkeypatch.setenv("PELTON_STORE", address)
    assert run("sub", "news.>", "--timeout", "50ms", status=1).err == "subscribed to news.>\n"


def test_a_message_without_an_answer_reaches_a_stream(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    assert run("pub", "orders", "x", "--no-ack").out == ""
    assert run("stream", "tail", "orders", "--follow", "--every", "10ms", "--until", 1).out


def test_info_shows_sums(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    run("pub", "orders", "x", "--count", 3)
    found = run("info", "--json").json
    assert (found["streams"], found["messages"]) == (1, 3)
    shown = run("info").lines
    assert shown[0] == ("cluster" if "://" in address else address)
    assert any(line.split() == ["messages:", "3"] for line in shown)


@pytest.mark.parametrize("value", ["x", "5 apples", "-", ""])
def test_values_that_cannot_be_read_are_usage_errors(run: Run, value: str) -> None:
    for words in (
        ["stream", "add", "s", "--max-age", value],
        ["stream", "add", "s", f"--max-bytes={value}"],
        ["pub", "s", "b", f"--count={value}"],
        ["pub", "s", "b", f"--header={value}"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2


def test_the_store_is_the_first_argument_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PELTON_STORE", raising=False)
    for name in ("a", "b"):
        with pelton.sync.open(f"{name}.pelton") as jet:
            jet.create_stream(name, subjects=[name])
    with pytest.raises(SystemExit) as ended:
        main(["stream", "ls"])
    assert ended.value.code == 2
    assert main(["stream", "ls", "a.pelton", "--names"]) == 0
    monkeypatch.setenv("PELTON_STORE", "a.pelton")
    assert main(["stream", "ls", "--names"]) == 0
    assert main(["stream", "ls", "b.pelton", "--names"]) == 0
    assert main(["stream", "info", "a"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == ["a", "a", "b"]
    assert main(["stream", "ls", "c.pelton"]) == 1
    assert "no such file" in capsys.readouterr().err
    assert not (tmp_path / "c.pelton").exists()


def test_looking_at_a_store_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELTON_STORE", "a.pelton")
    with pelton.sync.open("a.pelton") as jet:
        jet.create_stream("s", subjects=["s"]).create_consumer(durable_name="c")
        jet.publish("s", b"x")
        jet.create_bucket("b").put("k", b"v")
        jet.queue("q")
    before = Path("a.pelton").read_bytes()
    for line in (
        "info", "stream ls", "stream info s", "stream get s 1", "stream tail s", "consumer ls", "consumer info s c",
        "kv ls", "kv ls b", "kv get b k", "locks", "elections", "queue ls", "queue info q", "jobs ls q", "dead ls q",
        "workers", "top", "sql SELECT(1)",
    ):  # fmt: skip
        assert main(line.split()) == 0, capsys.readouterr().err
        assert main([*line.split(), "--json"]) == 0
    assert Path("a.pelton").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.pelton"]
