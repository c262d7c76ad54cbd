"""Tables and messages: on a terminal, and with data that would control a terminal."""

from __future__ import annotations

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


def test_on_a_terminal_columns_are_left_out_and_texts_cropped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    heads, row = ("name", "number", "rate", "state", "error"), ("x" * 30, 1_234_567, 0.5, "running", "e" * 30)

    def lines(columns: int, **more: Any) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        write_table(heads, [row], empty="", drop="rate, state", **more)
        return [line.rstrip() for line in _written(capsys).splitlines()]

    assert lines(100)[1] == f"{'x' * 30}  1,234,567   0.5  running  {'e' * 30}"
    assert lines(80)[1] == f"{'x' * 30}  1,234,567  {'e' * 30}"
    assert lines(60)[1] == f"{'x' * 23}…  1,234,567  {'e' * 22}…"
    assert lines(20)[1] == "xxxxxxx…  1,234,567"
    assert lines(20, wide=True) == lines(100)
    write_table(("名前", "n"), [("車車車", 1), ("a", 20)], empty="")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "名前     n",
        "車車車   1",
        "a       20",
    ]


def test_numbers_sizes_and_times_are_short() -> None:
    assert [text_of(cell) for cell in (True, False, 1234567, 0.25, "x")] == ["yes", "no", "1,234,567", "0.25", "x"]
    assert [bytes_text(size) for size in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
    assert [seconds_text(one) for one in (0, 0.0123, 4.56, 4570)] + [text_of(1234.56)] == [
        "",
        "12.3 ms",
        "4.56 s",
        "76 min",
        "1,235",
    ]
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
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("seq: 1 ")
    assert done.stderr == ""
