"""``pelton object``, run as from a shell."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import pelton
from pelton.cli.main import main


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.bin").write_bytes(bytes(3000))
    return tmp_path


def _object(*arguments: str) -> int:
    verb, *rest = arguments
    return main(["object", verb, "a.pelton", "files", *rest])


def test_a_file_goes_in_and_comes_out(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _object("put", "in.bin", "--create", "--description", "three thousand zeros") == 0
    assert _object("put", "in.bin", "folder/other") == 0
    assert _object("ls") == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[:2] == ["in.bin: 3,000 bytes put", "folder/other: 3,000 bytes put"]
    assert [line.split()[0] for line in listed[2:]] == ["object", "in.bin", "folder/other"]
    assert "2.9 KiB" in listed[3]
    assert _object("get", "folder/other") == 0
    assert (shell / "other").read_bytes() == bytes(3000)
    assert _object("get", "in.bin", "out.bin") == 0
    assert (shell / "out.bin").read_bytes() == bytes(3000)
    assert _object("info", "in.bin") == 0
    assert "description: three thousand zeros" in capsys.readouterr().out
    assert _object("rm", "in.bin") == 0
    assert _object("get", "in.bin") == 1
    assert "does not exist" in capsys.readouterr().err


class _Binary(io.StringIO):
    def __init__(self, content: bytes = b"") -> None:
        super().__init__()
        self.buffer = io.BytesIO(content)


def test_standard_input_and_output(shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Binary(b"content"))
    assert _object("put", "--create", "-") == 1
    assert _object("put", "--create", "-", "name") == 0
    out = _Binary()
    monkeypatch.setattr(sys, "stdout", out)
    assert _object("get", "name", "-") == 0
    assert out.buffer.getvalue() == b"content"


def test_what_was_left_is_removed(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pelton.sync.open("a.pelton") as jet:
        jet.create_objects("files")
        jet.publish("$O.files.C.left", b"x")
    command = ["object", "cleanup", "a.pelton", "files"]
    for arguments, removed in (([], 0), (["--older-than", "0"], 1)):
        capsys.readouterr()
        assert main([*command, *arguments]) == 0
        assert capsys.readouterr().out == f"files: {removed} unfinished objects removed\n"


def test_what_is_missing_is_told_and_not_made(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, *rest in (("ls",), ("put", "in.bin"), ("get", "x")):
        assert _object(verb, *rest) == 1
        assert "no such file" in capsys.readouterr().err
    assert not (shell / "a.pelton").exists()
    with pelton.sync.open("a.pelton"):
        pass
    assert _object("ls") == 1
    assert "there is no bucket 'files'" in capsys.readouterr().err
    assert _object("put", "nowhere.bin", "--create") == 1
    assert "nowhere.bin" in capsys.readouterr().err
