"""Each command that steers is told in the audit: who, what, on what, and what came of it."""

from __future__ import annotations

import getpass
from io import StringIO
from pathlib import Path

import pytest

import pelton
from tests.cli.conftest import Run


def test_what_steers_is_told_and_nothing_else(run: Run) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    run("pub", "orders", "secret payload", "--count", 3)
    run("stream", "ls")
    run("stream", "purge", "orders", "--force")
    run("stream", "rm", "none", "--force", status=1)
    entries = run("audit", "--json").json
    assert [entry["action"] for entry in entries] == ["stream rm", "stream purge", "stream add"]
    assert {entry["who"] for entry in entries} == {getpass.getuser()}
    assert entries[1]["target"] == "orders --force"
    assert "3" in entries[1]["result"]
    assert "none" in entries[0]["error"]
    shown = run("audit", "--limit", 1).out
    assert "stream rm" in shown
    assert "stream purge" not in shown
    assert "secret" not in run("audit", "--json").out


def test_how_many_are_in_the_queue_again_is_told(run: Run, address: str) -> None:
    with pelton.sync.open(address) as jet:
        shop = jet.queue("shop")

        @shop.job(max_attempts=1)
        def pack() -> None:
            raise ValueError

        for _ in range(2):
            shop.enqueue(pack)
        shop.work(until_idle=True)
    run("dead", "redrive", "shop", "--all")
    (entry,) = run("audit", "--json").json
    assert (entry["action"], entry["result"]) == ("dead redrive", "2 jobs are in the queue again")


def test_errors_are_in_the_words_of_the_command_line(run: Run, address: str) -> None:
    with pelton.sync.open(address) as jet:
        jet.queue("shop")
    run("cron", "pause", "shop", "none", status=1)
    shown = run("audit").out
    assert "see 'pelton cron ls'" in shown
    assert "schedules()" not in shown + run("audit", "--json").out, "the page of the dashboard shows what is stored"


def test_who_says_no_did_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("stream", "add", "orders", "--subjects", "orders")
    answers = StringIO("n\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    run("stream", "rm", "orders", status=1)
    assert len(run("audit", "--json").json) == 1


def test_tokens_of_a_file(run: Run, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("ann administer too-short\n")
    assert "give at least 16" in run("dashboard", "--tokens", tokens, status=1).err
    tokens.write_text("ann king a-token-that-is-long\n")
    assert "look, act, administer" in run("dashboard", "--tokens", tokens, status=1).err
    tokens.write_text("# nobody\nann act\n")
    assert "line 2" in run("dashboard", "--tokens", tokens, status=1).err
    assert "cannot be read" in run("dashboard", "--tokens", tmp_path / "none", status=1).err
