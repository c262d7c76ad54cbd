"""Files that cannot be opened as a store: each is refused by name, left unchanged, and opens once it is repaired."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import pelton
from pelton.api import NotAStoreError, StoreError, StoreReadOnlyError, StoreSettingsError, StoreVersionError
from pelton.engine.salvage import recount
from pelton.storage import SCHEMA_VERSION
from tests.storage.processes import Child
from tests.storage.stores import a_store, last_seq, raw

_NOBODY = 65534


async def refused(path: Path, error: type[StoreError]) -> StoreError:
    with pytest.raises(error) as caught:
        await pelton.open(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    return caught.value


async def test_a_store_of_a_newer_schema_is_left_alone_until_it_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with raw(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    error = await refused(path, StoreVersionError)
    assert isinstance(error, StoreVersionError)
    assert (error.found, error.known) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
    assert path.read_bytes() == before
    with raw(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 3


async def test_a_sqlite_file_of_another_program_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with raw(path) as connection:
        connection.execute("CREATE TABLE theirs(a); INSERT INTO theirs VALUES(1)")
    before = path.read_bytes()
    error = await refused(path, NotAStoreError)
    assert "another program" in str(error)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs.db"]


@pytest.mark.parametrize("pragma", ["application_id", "user_version"])
async def test_an_empty_sqlite_file_marked_by_another_program_is_theirs(tmp_path: Path, pragma: str) -> None:
    path = tmp_path / "theirs.db"
    with raw(path) as connection:
        connection.execute(f"PRAGMA {pragma}=7")
    await refused(path, NotAStoreError)


@pytest.mark.parametrize(
    "content", [b"hello", b"\0" * 100, b"SQLite format 3\0 but not really" * 200, os.urandom(9000)]
)
async def test_a_file_that_is_no_sqlite_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    await refused(path, NotAStoreError)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["notes.txt"]
    path.unlink()
    await a_store(path)


async def test_a_store_cut_short_is_refused_and_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    os.truncate(path, 50)
    assert "cut off: salvage what is left" in str(await refused(path, StoreError))
    assert path.stat().st_size == 50


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    path.touch()
    await a_store(path)
    assert recount(str(path)) == []


async def test_a_folder(tmp_path: Path) -> None:
    assert "folder" in str(await refused(tmp_path, NotAStoreError))


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "a.pelton"
    assert str(path.parent) in str(await refused(path, StoreSettingsError))
    path.parent.mkdir(parents=True)
    await a_store(path)


# --- what may not be written. Root may write everything, so a child drops root's rights first.


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can access (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def _opens(path: Path) -> str:
    try:
        async with pelton.open(path) as jet:
            await jet.publish("s.nobody", b"written")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "written"


def _open_as_nobody(pipe: Connection, path: Path) -> None:
    if os.geteuid() == 0:
        # Python's own files may be readable only for root: import everything before.
        asyncio.run(_opens(Path("memory:")))
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    pipe.send(asyncio.run(_opens(path)))


def opened_as_nobody(path: Path) -> str:
    with Child(_open_as_nobody, path) as child:
        said: str = child.hear()
        child.join()
        return said


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o777, 0o444), (0o555, 0o666), (0o555, 0o444)])
async def test_a_read_only_file_or_folder_is_refused_until_it_is_writable(
    open_folder: Path, folder_mode: int, file_mode: int
) -> None:
    path = open_folder / "a.pelton"
    await a_store(path)
    path.chmod(file_mode)
    open_folder.chmod(folder_mode)
    said = opened_as_nobody(path)
    assert said.startswith(StoreReadOnlyError.__name__), said
    assert str(path) in said
    open_folder.chmod(0o777)
    path.chmod(0o666)
    assert opened_as_nobody(path) == "written"
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 4
    assert recount(str(path)) == []


async def test_a_new_store_in_a_read_only_folder(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    said = opened_as_nobody(open_folder / "a.pelton")
    assert said.startswith(StoreReadOnlyError.__name__), said
    assert os.listdir(open_folder) == []


async def test_a_store_of_another_user_that_cannot_even_be_read(open_folder: Path) -> None:
    path = open_folder / "a.pelton"
    await a_store(path)
    path.chmod(0o600)
    if os.geteuid() == 0:
        said = opened_as_nobody(path)
        assert said.startswith(StoreReadOnlyError.__name__), said


# --- names


async def test_a_link_to_a_store_is_the_store(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.pelton"
    link.symlink_to(path)
    async with pelton.open(path) as jet, pelton.open(link) as linked:
        consumer = await (await jet.stream("s")).create_consumer(deliver_policy="new")
        waiting = asyncio.ensure_future(consumer.fetch(timeout=30))
        assert (await linked.publish("s.link")).seq == 4
        assert [message.metadata.stream_seq for message in await waiting] == [4]
    assert os.listdir(tmp_path / "elsewhere") == ["link.pelton"]


async def test_a_relative_path_holds_when_the_process_changes_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    async with pelton.open("a.pelton") as jet:
        monkeypatch.chdir(tmp_path / "there")
        await jet.create_stream("s", subjects=["s.>"])
        await jet.publish("s.1")
        clone = jet.backend.clone()
        assert (await clone.publish("s.2", b"")).seq == 2
        await clone.close()
    assert os.listdir(tmp_path / "there") == []


@pytest.mark.parametrize("name", ["with space", "hash#and?question", "per%20cent", "umläut-日本", "a" * 240])
async def test_odd_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    await a_store(path)
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 3
    assert os.listdir(tmp_path) == [name]
