"""The commands that maintain store files, run as from a shell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pelton
from pelton.cli.main import main
from tests.storage.stores import a_store, raw


async def test_a_store_is_verified_backed_up_and_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, copy, again = (str(tmp_path / name) for name in ("a.pelton", "b.pelton", "c.pelton"))
    await a_store(Path(store), 30)
    assert main(["verify", store]) == 0
    assert main(["backup", store, copy, "--stream", "s"]) == 0
    assert main(["restore", copy, again]) == 0
    assert main(["compact", again]) == 0
    assert main(["verify", again]) == 0
    assert "all is well" in capsys.readouterr().out
    assert main(["restore", copy, again]) == 1
    assert "exists already" in capsys.readouterr().err


async def test_a_damaged_store_is_found_and_salvaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, saved = str(tmp_path / "a.pelton"), str(tmp_path / "b.pelton")
    await a_store(Path(store), 30)
    with raw(Path(store)) as connection:
        connection.execute("UPDATE m_1 SET data=x'00' WHERE seq=7")
    assert main(["verify", store]) == 1
    assert "message 7 does not match its checksum" in capsys.readouterr().out
    assert main(["restore", store, saved]) == 1
    assert main(["salvage", store, saved]) == 0
    assert "29 messages saved, 1 lost" in capsys.readouterr().out
    assert main(["verify", saved]) == 0


async def test_keys_come_from_files_or_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = str(tmp_path / "a.pelton"), str(tmp_path / "key")
    Path(key).write_text("secret\n")
    await a_store(Path(store), 3)
    assert main(["rekey", store, "--new-key-file", key]) == 0
    assert main(["verify", store]) == 1
    assert "it is encrypted" in capsys.readouterr().err
    assert main(["verify", store, "--key-file", key]) == 0
    monkeypatch.setenv("PELTON_KEY", "secret")
    assert main(["verify", store]) == 0
    assert main(["rekey", store, "--decrypt"]) == 0
    monkeypatch.delenv("PELTON_KEY")
    assert main(["verify", store]) == 0


@pytest.mark.parametrize("command", [["verify"], ["backup", "x"], ["salvage", "x"], ["compact"], ["migrate"],
                                     ["restore", "x"], ["copy", "x"], ["rekey", "--decrypt"]])  # fmt: skip
def test_a_store_that_is_not_there_is_not_made(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command[0], "nowhere.pelton", *command[1:]]) == 1
    assert re.fullmatch(r"pelton: \S*nowhere.pelton: there is no such file\b.*\n", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_backup_is_a_store(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "a.pelton") as jet:
        jet.create_stream("s")
        jet.publish("s", b"1")
        jet.backup(tmp_path / "b.pelton")
        with pelton.sync.open(tmp_path / "b.pelton") as copy:
            assert copy.stream("s").info().state.messages == 1
