"""A full disk: writes are refused, nothing is stored, others are unharmed, and everything works once there is room."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import apsw
import pytest

import pelton
from pelton.api import StoreError, StoreFullError
from pelton.engine.salvage import recount
from tests.storage.processes import Child, hear_in_child
from tests.storage.stores import a_store, last_seq

_PAYLOAD = os.urandom(20_000)
_write = os.write
# What it returns, and its parameters.
_PWRITE = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)


async def publish_until_refused(jet: pelton.Jet, limit: int = 2000) -> tuple[int, StoreError]:
    """Return the last acknowledged sequence and the error of the first publish that was refused."""
    acked = 0
    for _ in range(limit):
        try:
            acked = (await jet.publish("s.big", _PAYLOAD)).seq
        except StoreError as error:
            return acked, error
    raise AssertionError("the disk never became full")


async def test_a_database_at_its_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        pages = jet.backend.session.db.connection.execute
        pages("PRAGMA max_page_count=200")
        acked, error = await publish_until_refused(jet)
        assert isinstance(error, StoreFullError)
        assert error.path == str(path)
        assert await last_seq(jet) == acked
        # Of many that wait together those that fit are stored, and only the others are refused.
        results = await asyncio.gather(
            *(jet.publish("s.many", _PAYLOAD if n % 2 else b"small") for n in range(20)), return_exceptions=True
        )
        assert [isinstance(result, StoreFullError) for result in results] == [n % 2 == 1 for n in range(20)]
        pages("PRAGMA max_page_count=100000")
        assert (await jet.publish("s.big", _PAYLOAD)).seq == acked + 11
    assert recount(str(path)) == []


async def test_making_room_inside_a_full_store(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        jet.backend.session.db.connection.execute("PRAGMA max_page_count=200")
        acked, _ = await publish_until_refused(jet)
        stream = await jet.stream("s")
        assert await stream.purge(keep=1) == acked - 1
        assert (await jet.publish("s.big", _PAYLOAD)).seq == acked + 1
    assert recount(str(path)) == []


# --- a real file system that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_file_system(small_disk: Path) -> None:
    path = small_disk / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        acked, error = await publish_until_refused(jet)
        assert isinstance(error, StoreFullError)
        assert await last_seq(jet) == acked
        ballast.unlink()
        assert (await jet.publish("s.big", _PAYLOAD)).seq == acked + 1
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == acked + 1
    assert recount(str(path)) == []


async def test_a_store_that_cannot_even_be_made(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    path = small_disk / "a.pelton"
    with pytest.raises(StoreFullError):
        await pelton.open(path)
    ballast.unlink()
    await a_store(path)
    assert recount(str(path)) == []


async def test_a_store_opened_while_the_disk_is_full(small_disk: Path) -> None:
    path = small_disk / "a.pelton"
    await a_store(path)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    with pytest.raises(StoreFullError):
        async with pelton.open(path) as jet:
            await jet.publish("s.big", _PAYLOAD)
    ballast.unlink()
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 3
        await jet.publish("s.big", _PAYLOAD)
    assert recount(str(path)) == []


# --- a quota: the file system has room, and this user has none


class Quota:
    """Refuses what SQLite and Python write, as a kernel does beyond a disk quota; ``is_used_up`` says from when on."""

    def __init__(self) -> None:
        self.is_used_up = False
        self._libc = ctypes.CDLL(None, use_errno=True).pwrite64
        self._libc.argtypes, self._libc.restype = _PWRITE[1:], _PWRITE[0]
        self._call = ctypes.CFUNCTYPE(*_PWRITE, use_errno=True)(self._pwrite)
        self.pointer = ctypes.cast(self._call, ctypes.c_void_p).value

    def _pwrite(self, file: int, data: int, size: int, offset: int) -> int:
        if not self.is_used_up:
            return int(self._libc(file, data, size, offset))
        ctypes.set_errno(errno.EDQUOT)
        return -1

    def write(self, file: int, data: bytes) -> int:
        if self.is_used_up:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return _write(file, data)


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Iterator[Quota]:
    if sys.platform != "linux":
        pytest.skip("the name of the system call is Linux's")
    vfs, found = apsw.VFS("quota", "unix"), Quota()
    before = vfs.xGetSystemCall("pwrite64")
    vfs.xSetSystemCall("pwrite64", found.pointer)
    monkeypatch.setattr(os, "write", found.write)
    yield found
    vfs.xSetSystemCall("pwrite64", before)
    vfs.unregister()


@pytest.mark.parametrize("key", [None, b"secret"])
async def test_a_quota_that_is_used_up_is_a_full_disk(tmp_path: Path, quota: Quota, key: bytes | None) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key=key) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        acked = (await jet.publish("s.big", _PAYLOAD)).seq
        quota.is_used_up = True
        with pytest.raises(StoreFullError, match="no space left"):
            await jet.publish("s.big", _PAYLOAD)
        with pytest.raises(StoreFullError):
            await jet.backup(tmp_path / "copy.pelton")
        quota.is_used_up = False
        assert (await jet.publish("s.big", _PAYLOAD)).seq == acked + 1
    assert recount(str(path), key=key) == []


# --- a limit on file sizes: the write is cut short, with another error than a full disk's


async def _publish_below_a_limit(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        await jet.publish("s.first")
        size = (path.parent / (path.name + "-wal")).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, resource.RLIM_INFINITY))
        acked, error = await publish_until_refused(jet)
        pipe.send((acked, type(error).__name__))
        await hear_in_child(pipe)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        pipe.send((await jet.publish("s.big", _PAYLOAD)).seq)


async def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with Child(_publish_below_a_limit, path) as child:
        acked, error = child.hear()
        assert error in ("StoreError", "StoreFullError")
        async with pelton.open(path) as jet:
            assert await last_seq(jet) == acked
        child.say("go on")
        assert child.hear() == acked + 1
        child.join()
    assert recount(str(path)) == []
