"""The commands that maintain store files, run as from a shell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pelton
from pelton.cli.main import main
from tests.storage.stores import a_store, last_seq, raw


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


async def test_a_backup_continues_and_is_restored_to_its_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, folder, again = (str(tmp_path / name) for name in ("a.pelton", "backup", "b.pelton"))
    await a_store(Path(store), 30)

    def run(*words: str, status: int = 0) -> str:
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(main, words).result() == status
        out, err = capsys.readouterr()
        return out or err

    assert "30 messages" in run("backup", store, folder, "--keep", "7d")
    [first] = json.loads(run("restore", folder, "--list", "--json"))
    async with pelton.open(store) as jet:
        await jet.publish("s.x", b"new")
    # There is an entry of the audit, too.
    assert json.loads(run("backup", store, folder, "--json"))["messages"] == 32
    assert run("restore", folder, "--list").splitlines()[0].split() == ["time", "messages", "size", "written"]
    assert "restored as of" in run("restore", folder, again, "--at", first["time"])
    async with pelton.open(again) as jet:
        assert await last_seq(jet) == 30
    assert json.loads(run("audit", again, "--json"))[0]["action"] == "restore"
    assert "name the STORE" in run("restore", folder, status=1)
    assert "--list and --at are for" in run("restore", again, "--list", status=1)
    assert "--stream is for a backup in a new file" in run("backup", store, folder, "--stream", "s", status=1)
    assert "no point is so old" in run("restore", folder, str(tmp_path / "c"), "--at", "2w", status=1)


def test_a_backup_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    store, folder = tmp_path / "a.pelton", tmp_path / "backup"
    with pelton.sync.open(store) as jet:
        jet.create_stream("s")
    words = [sys.executable, "-m", "pelton", "backup", str(store), str(folder), "--every", "0.01s", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        points = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.terminate()
        process.communicate()
        assert process.returncode == 0
    assert len({point["time"] for point in points}) == 3
