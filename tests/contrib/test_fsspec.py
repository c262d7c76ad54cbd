"""fsspec's own calls on the object stores of a file: by URL, by path, and in a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import fsspec

import pelton
from pelton.contrib.fsspec import PeltonFileSystem
from pelton.contrib.process_store import close_process_stores, process_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    fsspec.register_implementation("pelton", PeltonFileSystem, clobber=True)
    yield str(tmp_path / "shop.pelton")
    close_process_stores()


@pytest.fixture
def fs(store: str) -> Any:
    return fsspec.filesystem("pelton", store=store)


def test_files_are_written_and_read_by_url(store: str) -> None:
    with fsspec.open(f"pelton://{store}/invoices/2026/7.txt", "w") as file:
        file.write("19.90 CHF\n")
    with fsspec.open(f"pelton://{store}/invoices/2026/7.txt", "r") as file:
        assert file.read() == "19.90 CHF\n"
    assert [str(file.path) for file in fsspec.open_files(f"pelton://{store}/invoices/*/*.txt")] == [
        "invoices/2026/7.txt"
    ]
    with pelton.sync.open(store) as jet:
        assert jet.objects("invoices").get("2026/7.txt") == b"19.90 CHF\n"


def test_folders_are_listed_and_walked(fs: Any) -> None:
    fs.mkdir("a")
    assert fs.ls("a") == []
    for name in ("x", "d/y", "d/e/z"):
        fs.pipe_file(f"a/{name}", name.encode())
    assert fs.ls("", detail=False) == ["a"]
    assert fs.ls("a", detail=False) == ["a/d", "a/x"]
    assert fs.ls("a/d/y", detail=False) == ["a/d/y"]
    assert fs.find("a") == ["a/d/e/z", "a/d/y", "a/x"]
    assert [(path, sorted(folders), sorted(files)) for path, folders, files in fs.walk("a")] == [
        ("a", ["d"], ["x"]),
        ("a/d", ["e"], ["y"]),
        ("a/d/e", [], ["z"]),
    ]
    assert fs.glob("a/**/*z") == ["a/d/e/z"]
    assert [fs.isdir(path) for path in ("", "a", "a/d", "a/x", "b", "a/b")] == [True, True, True, False, False, False]
    assert [fs.isfile(path) for path in ("a", "a/d", "a/x", "b/x")] == [False, False, True, False]
    assert fs.du("a") == 9
    for missing in ("b", "a/b", "b/c"):
        with pytest.raises(FileNotFoundError):
            fs.ls(missing)
        with pytest.raises(FileNotFoundError):
            fs.info(missing)
    with pytest.raises(FileExistsError):
        fs.mkdir("a")
    with pytest.raises(FileExistsError):
        fs.makedirs("a")
    fs.makedirs("a/new", exist_ok=True)
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("a")


def test_files_are_described_copied_moved_and_removed(fs: Any, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    fs.pipe_file("a/x", content)
    info = fs.info("a/x")
    assert (info["size"], info["type"]) == (len(content), "file")
    assert datetime.now(UTC) - fs.modified("a/x") < timedelta(minutes=1)
    assert fs.created("a/x") == fs.modified("a/x")
    assert fs.cat_file("a/x", 1000, 1010) == content[1000:1010]
    assert fs.head("a/x", 5) == content[:5]
    fs.cp_file("a/x", "b/y")
    assert fs.checksum("a/x") == fs.checksum("b/y")
    fs.mv("b/y", "b/z")
    assert fs.ls("b", detail=False) == ["b/z"]
    (tmp_path / "there").write_bytes(b"local")
    fs.put(str(tmp_path / "there"), "a/there")
    fs.get("a/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"local"
    fs.rm_file("a/there")
    with pytest.raises(FileNotFoundError):
        fs.rm_file("a/there")
    with pytest.raises(FileNotFoundError):
        fs.open("a/there")
    fs.rm("a", recursive=True)
    assert fs.ls("", detail=False) == ["b"]
    fs.rm("b/z")
    fs.rmdir("b")
    assert fs.ls("") == []


def test_a_file_is_there_when_it_is_closed(fs: Any) -> None:
    with fs.open("a/x", "wb") as file:
        file.write(b"one")
        assert file.tell() == 3
        assert not fs.exists("a/x")
    assert fs.cat("a/x") == b"one"
    with fs.open("a/x", "ab") as file:
        file.write(b", two")
    with fs.open("a/new", "ab") as file:
        file.write(b"!")
    assert fs.cat(["a/x", "a/new"]) == {"a/x": b"one, two", "a/new": b"!"}
    with pytest.raises(FileExistsError):
        fs.open("a/x", "xb")
    with pytest.raises(ValueError, match="mode"):
        fs.open("a/x", "r+b")
    with fs.transaction:
        fs.pipe_file("a/x", b"three")
        assert fs.cat("a/x") == b"one, two"
    assert fs.cat("a/x") == b"three"
    fs.start_transaction()
    fs.pipe_file("a/x", b"four")
    fs.transaction.complete(commit=False)
    fs.end_transaction()
    assert fs.cat("a/x") == b"three"


def test_a_large_file_goes_through_a_temporary_one(fs: Any) -> None:
    content = b"0123456789abcdef" * 2**20 + b"more"
    with fs.open("a/large", "wb") as file:
        file.write(content[: 2**23])
        file.write(content[2**23 :])
    with fs.open("a/large") as file:
        file.seek(2**24)
        assert file.read() == b"more"


def test_urls(store: str) -> None:
    split = PeltonFileSystem._strip_protocol
    assert split("pelton:///var/shop.pelton/a/b/") == "a/b"
    assert split(["a/b", "pelton://shop.pelton"]) == ["a/b", ""]
    assert PeltonFileSystem._get_kwargs_from_urls("pelton:///var/shop.pelton/a/b") == {"store": "/var/shop.pelton"}
    assert PeltonFileSystem._get_kwargs_from_urls("pelton://a/b") == {}
    assert fsspec.filesystem("pelton", store="nats://host:4222").unstrip_protocol("a/b") == "pelton://a/b"
    assert fsspec.filesystem("pelton", store=store).unstrip_protocol("a/b") == f"pelton://{store}/a/b"
    with pytest.raises(pelton.ConfigError):
        fsspec.filesystem("pelton")


class ReadBytes:
    """Counts the bytes of chunks that are read from a store."""

    def __init__(self, jet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        asked = jet.backend.direct_get

        async def counted(stream: str, request: Any) -> Any:
            reply = await asked(stream, request)
            self.number += sum(len(message.data) for message in reply.messages)
            return reply

        monkeypatch.setattr(jet.backend, "direct_get", counted)


def test_a_part_of_a_large_file_is_read_alone(fs: Any, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 2**18
    fs.pipe_file("a/large", content)
    fs.pipe_file("a/large2", content[::-1])
    read = ReadBytes(process_store(store).jet, monkeypatch)
    assert fs.cat_file("a/large", 50_000_000, 50_000_100) == content[50_000_000:50_000_100]
    assert fs.cat_file("a/large", -10) == content[-10:]
    assert fs.tail("a/large", 5) == content[-5:]
    assert read.number < 2**22
    with fs.open("a/large", block_size=2**17) as file:
        assert file.size == len(content)
        for start in (3, 2**25 + 7, 2**20):
            file.seek(start)
            assert file.read(1000) == content[start : start + 1000]
        assert read.number < 2**23
        fs.mv("a/large2", "a/large")
        file.seek(2**24)
        with pytest.raises(pelton.ObjectChangedError):
            file.read(10)
    with fs.open("a/large") as file:
        assert file.read() == content[::-1]


def test_a_part_of_a_small_file_or_of_a_link(fs: Any, store: str) -> None:
    fs.pipe_file("a/small", b"0123456789")
    assert fs.cat_file("a/small", 2, 4) == fs.cat_file("a/small", -8, -6) == b"23"
    assert fs.cat_file("a/small", 8, 20) == b"89"
    assert fs.cat_file("a/small", 4, 2) == b""
    objects = process_store(store).blocking.objects("a")
    objects.add_link("link", objects.info("small"))
    assert fs.cat_file("a/link", 2, 4) == b"23"
    with pytest.raises(FileNotFoundError):
        fs.cat_file("a/none", 2, 4)


def test_pyarrow_reads_a_column_of_a_parquet_file(fs: Any, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 100_000
    columns = {"number": list(range(rows)), "text": [f"{number:0150d}" for number in range(rows)]}
    with fs.open("a/table.parquet", "wb") as file:
        pq.write_table(pa.table(columns), file, compression="none", use_dictionary=False)
    assert fs.size("a/table.parquet") > 15_000_000
    read = ReadBytes(process_store(store).jet, monkeypatch)
    with fs.open("a/table.parquet", block_size=2**16) as file:
        found = pq.read_table(file, columns=["number"], pre_buffer=False)
    assert found.column("number").to_pylist() == columns["number"]
    assert read.number < 6_000_000
