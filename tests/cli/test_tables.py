"""Tables and messages: on a terminal, without rich, and with data that would control a terminal."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api.wording import age_text, bytes_text
from pelton.cli.main import main
from pelton.cli.output import seconds_text, text_of, write_table
from tests.cli.test_main import EVIL

ROWS = [("a", 1, 0.5), (EVIL, 20_000, 12.0)]


def _written(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in text), text
    return text


def test_columns_are_aligned_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("name", "number", "rate"), [("a", 1, 0.5), ("long name", 20_000, 12.0)], empty="")
    assert capsys.readouterr().out.splitlines() == [
        "name       number  rate",
        "a               1   0.5",
        "long name  20,000    12",
    ]
    write_table(("name", "number", "rate"), ROWS, empty="")
    assert "\\x1b]0;owned" in _written(capsys)
    write_table(("name",), [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"


def test_rich_draws_the_table_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_table(("name", "number", "rate"), ROWS, empty="")
    text = _written(capsys)
    assert "─" in text
    assert "\\x1b]0;owned" in text
    assert "20,000" in text


def test_without_rich_there_are_plain_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without_rich(name: str, *rest: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_table(None, [("a", 1)], empty="")
    assert capsys.readouterr().out == "a  1\n"


def test_numbers_sizes_and_times_are_short() -> None:
    assert [text_of(cell) for cell in (True, False, 1234567, 0.25, "x")] == ["yes", "no", "1,234,567", "0.25", "x"]
    assert [bytes_text(size) for size in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
    assert [seconds_text(one) for one in (0, 0.0123, 4.56)] == ["", "12.3 ms", "4.56 s"]
    now = 1_700_000_000 * 10**9
    times = ["2023-11-14T22:13:15Z", "2023-11-14T22:10:00Z", "2023-11-14T12:13:20Z", "2023-11-01T00:00:00Z", ""]
    assert [age_text(time, now) for time in times] == ["5 s", "3 min", "10 h", "14 d", ""]


def test_data_in_a_store_is_harmless_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELTON_STORE", "a.pelton")
    with pelton.sync.open("a.pelton") as jet:
        stream = jet.create_stream("s", subjects=["s.>"], description=EVIL)
        jet.publish("s.\x1b[2J", EVIL.encode(), headers={"Kind": "\x1b[31m"})
        stream.create_consumer(durable_name="c", description=EVIL)
        jet.create_bucket("b").put("k", EVIL.encode())
        with jet.transaction() as tx:
            tx.sql("CREATE TABLE mine(x)")
            tx.sql("INSERT INTO mine VALUES(?)", (EVIL,))
    capsys.readouterr()
    for line in ("stream info s", "stream get s 1", "stream tail s", "consumer info s c", "kv get b k", "top"):
        assert main(line.split()) == 0
        assert _written(capsys)
        assert main([*line.split(), "--json"]) == 0
        assert _written(capsys).isascii()
    assert main(["sql", "SELECT x FROM mine"]) == 0
    assert "\\x1b]0;owned" in _written(capsys)
    assert main(["stream", "get", "s", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == EVIL


def test_output_that_nobody_reads_any_more_is_no_traceback(tmp_path: Path) -> None:
    import subprocess

    path = str(tmp_path / "a.pelton")
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s"])
        jet.publish_batch([("s", b"x" * 1000)] * 2000)
    command = f"{sys.executable} -m pelton stream tail {path} s -n 2000 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("seq: 1 ")
    assert done.stderr == ""
