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
from pelton.contrib.process_store import close_process_stores


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
