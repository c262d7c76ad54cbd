"""``pelton pipeline``, run as from a shell, in the session that all tests share."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pelton
from pelton.cli.main import main
from pelton.spark.pipelines.session import NoJavaError, cause, check_java
from tests.spark.pipelines.test_lake_archive import fill
from tests.spark.pipelines.worked import work


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pipeline(verb: str, *arguments: str) -> int:
    return main(["pipeline", verb, "s.pelton", *arguments])


def test_a_stream_goes_to_a_lake_and_back(spark: SparkSession, shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(shell / "s.pelton", "orders", 12)
    with pelton.sync.open("s.pelton") as jet:
        jet.create_stream("again", subjects=["again.>"])
    for _ in range(2):
        assert pipeline("archive", "orders", "--to", "lake") == 0
    (shell / "mine.py").write_text("def half(frame):\n    return frame.where('sequence % 2 = 0')\n")
    replay = ["replay", "again", "--archive", "lake", "--name", "r", "--subject", "again.{stream}"]
    for _ in range(2):
        assert pipeline(*replay, "--transform", "mine:half", "--where", "sequence > 2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "lake: 12 messages archived",
        "lake: 0 messages archived",
        "again: 5 messages written",
        "again: 0 messages written, 5 were written before",
    ]
    assert not (shell / "s.pelton-wal").exists()
    with pelton.sync.open("s.pelton") as jet:
        assert jet.stream("again").get_message(1).data == b"3"


def test_letters_are_shown_and_driven_and_reported(
    spark: SparkSession, shell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(shell / "s.pelton")
    assert pipeline("dead-letters", "garage", "--by-cause") == 0
    assert "ValueError: never works" in capsys.readouterr().out
    assert pipeline("dead-letters", "garage", "--redrive") == 1
    assert pipeline("dead-letters", "garage", "--redrive", "--where", "cause LIKE 'Value%'") == 0
    assert capsys.readouterr().out == "garage: 3 jobs in the queue again\n"
    assert pipeline("report", "garage") == 0
    assert "<b>40</b><span>jobs ended" in (shell / "report.html").read_text()


def test_what_goes_wrong_is_one_line(spark: SparkSession, shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline("report", "garage") == 1
    assert capsys.readouterr().err == "pelton: s.pelton: no such file\n"
    fill(shell / "s.pelton", "orders", 1)
    assert pipeline("archive", "nothing", "--to", "lake") == 1
    told = capsys.readouterr().err
    assert "nothing" in told
    assert told.count("\n") == 1


def test_without_the_extra_the_next_step_is_told(
    shell: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shell / "s.pelton").touch()
    for name in [name for name in sys.modules if name.startswith("pelton.spark")]:
        monkeypatch.delitem(sys.modules, name)
    plain = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return plain(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    assert pipeline("report", "garage") == 1
    assert "pip install 'pelton[pipelines]'" in capsys.readouterr().err


def test_without_java_the_next_step_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJavaError, match="has no bin/java: apt install openjdk-17"):
        check_java()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(NoJavaError, match="bin/java is older: apt install openjdk-17"):
        check_java()


def test_the_cause_of_a_long_error_is_found() -> None:
    long = 'An exception\nTraceback\n  File "x"\npelton.api.errors.ConfigError: there is no queue\n\tat java.lang'
    assert cause(long) == "ConfigError: there is no queue"
    assert cause("[UNRESOLVED] no column a\nmore") == "[UNRESOLVED] no column a"
