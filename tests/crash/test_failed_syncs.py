"""Data acknowledged after a failed sync survives a power loss; until that is certain the store refuses work."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.api import StoreError, StoreFailedError
from pelton.connect import Jet
from pelton.engine.salvage import recount
from pelton.storage.wal import SyncFile, SyncRecord, WriteFile
from tests.crash.failures import fold, killed
from tests.kit.power import RecordingDisk, write_image
from tests.storage.stores import open_engine

_IMAGES = 12


class Played:
    """A store on a recording disk, and its acknowledged messages."""

    def __init__(self, disk: RecordingDisk, path: Path, key: bytes | None) -> None:
        self.disk, self.path, self.key = disk, path, key
        self.random = Random(1)
        self.acknowledged: dict[int, bytes] = {}
        self.made = 0

    def open(self, sync_file: SyncFile | None = None, write_file: WriteFile | None = None) -> Jet:
        disk = self.disk
        sync_file, write_file = sync_file or disk.sync_file, write_file or disk.write_file
        return open_engine(self.path, vfs=disk.vfs, sync_file=sync_file, write_file=write_file, key=self.key)

    async def publish(self, jet: Jet, size: int = 6000) -> int:
        self.made += 1
        data = b"%d " % self.made + bytes(size)
        seq = (await jet.publish("s.1", data)).seq
        self.acknowledged[seq] = data
        return seq

    async def some(self, jet: Jet) -> None:
        for _ in range(3):
            await self.publish(jet)

    async def check(self, folder: Path) -> None:
        """Lose power now, in many ways."""
        for number in range(_IMAGES):
            at = folder / f"image-{len(self.disk.events)}-{number}"
            at.mkdir(parents=True)
            write_image(at, self.disk.image(len(self.disk.events), self.random))
            assert recount(str(at / "a.pelton"), self.key) == []
            async with pelton.open(at / "a.pelton", key=self.key) as jet:
                await self.found(jet)

    async def found(self, jet: Jet) -> None:
        stream = await jet.stream("s")
        for seq, data in self.acknowledged.items():
            assert (await stream.get_message(seq)).data == data


@pytest.fixture(params=[None, b"a key"], ids=["plain", "encrypted"])
async def played(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Played]:
    disk = RecordingDisk(f"failing-{request.node.name}")
    folder = tmp_path / "live"
    folder.mkdir()
    played = Played(disk, folder / "a.pelton", request.param)
    async with played.open() as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await played.some(jet)
    yield played
    disk.close()


async def refused(played: Played, jet: Jet) -> None:
    with pytest.raises(StoreFailedError, match="open it again"):
        await played.publish(jet)


def kill(played: Played, folder: Path) -> None:
    played.path = killed(played.disk, played.path, folder)


@pytest.mark.parametrize("evicts", [False, True])
async def test_alone_the_log_is_written_again_on_opening(played: Played, tmp_path: Path, evicts: bool) -> None:
    jet = played.open()
    await played.some(jet)
    played.disk.fail("-wal", played.random, evicts=evicts)
    await refused(played, jet)
    await jet.close()
    assert Path(f"{played.path}-wal").exists(), "what nobody knows to be on disk is not folded"
    await played.check(tmp_path / "closed")
    async with played.open() as again:
        await played.found(again)
        await played.some(again)
        await played.check(tmp_path / "open")
    assert [file.name for file in played.path.parent.iterdir()] == ["a.pelton"]
    await played.check(tmp_path / "folded")


async def test_another_opener_keeps_the_log_alive(played: Played, tmp_path: Path) -> None:
    first, other = played.open(), played.open()
    await played.some(first)
    await played.some(other)
    played.disk.fail("-wal", played.random)
    await refused(played, first)
    await first.close()
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "before")
        # It was open when the sync failed; its refusal does not stop the others.
        await refused(played, other)
        await played.some(again)
    await other.close()
    await played.check(tmp_path / "after")


async def test_the_failure_reaches_those_who_are_open(played: Played, tmp_path: Path) -> None:
    first, other = played.open(), played.open()
    await played.some(other)
    played.disk.fail("-wal", played.random)
    await refused(played, first)
    await refused(played, other)
    await first.close()
    await other.close()
    await played.check(tmp_path)
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "again")


async def test_a_log_that_cannot_be_read_any_more_is_recovered_when_all_have_closed_it(
    played: Played, tmp_path: Path
) -> None:
    first, other = played.open(), played.open()
    await played.some(first)
    played.disk.fail("-wal", played.random, evicts=True)
    await refused(played, first)
    await first.close()
    with pytest.raises(StoreFailedError, match="close the store in every process"):
        played.open()
    with suppress(StoreError):
        # What it reads may be damaged. Nothing it derives from that is acknowledged, or checkpointed.
        await played.publish(other)
        raise AssertionError("it is acknowledged")
    await other.close()
    await played.check(tmp_path / "closed")
    async with played.open() as again:
        await played.found(again)
        await played.some(again)
        await played.check(tmp_path / "open")


async def test_while_the_disk_fails_opening_refuses_and_changes_nothing(played: Played, tmp_path: Path) -> None:
    jet = played.open()
    await played.some(jet)
    played.disk.fail("-wal", played.random, times=3)
    await refused(played, jet)
    await jet.close()
    for _ in range(2):
        with pytest.raises(StoreFailedError, match=r"writing the log again.*copy the file together with its -wal"):
            played.open()
        await played.check(tmp_path / "refused")
    # Reads and copies are still allowed.
    await asyncio.to_thread(pelton.backup, played.path, tmp_path / "copy.pelton", key=played.key)
    async with pelton.open(tmp_path / "copy.pelton", key=played.key) as copy:
        await played.found(copy)
    assert Path(f"{played.path}-wal").exists()
    async with played.open() as again:
        await played.some(again)
    await played.check(tmp_path / "again")


@pytest.mark.parametrize("mode", ["PASSIVE", "TRUNCATE"])
@pytest.mark.parametrize("file", ["-wal", ".pelton"])
@pytest.mark.parametrize("evicts", [False, True])
async def test_a_sync_of_sqlites_own_fails(played: Played, tmp_path: Path, mode: str, file: str, evicts: bool) -> None:
    jet, other = played.open(), played.open()
    await played.some(jet)
    played.disk.fail(file, played.random, evicts=evicts)
    fold(jet, mode)
    with suppress(StoreError):
        await played.publish(jet)
        raise AssertionError("it is acknowledged")
    await refused(played, other)
    await jet.close()
    await other.close()
    await played.check(tmp_path / "closed")
    async with played.open() as again:
        await played.found(again)
        await played.some(again)
        fold(again, "TRUNCATE")
        await played.check(tmp_path / "folded")


@pytest.mark.parametrize("file", ["-wal", ".pelton"])
async def test_folding_fails_at_close(played: Played, tmp_path: Path, file: str) -> None:
    jet = played.open()
    await played.some(jet)
    # A sync that failed unnoticed: the sync of the WAL at close finds nothing to write.
    played.disk.fail(file, played.random)
    await jet.close()
    assert Path(f"{played.path}-wal").exists()
    await played.check(tmp_path / "closed")
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "open")
    assert not Path(f"{played.path}-wal").exists()


async def test_who_is_killed_in_a_sync_takes_its_failure_along(played: Played, tmp_path: Path) -> None:
    def dies(descriptor: int) -> None:
        if played.disk.is_failing:
            with suppress(OSError):
                played.disk.sync_file(descriptor)
            kill(played, tmp_path / "killed")
            raise OSError(errno.EIO, "the process is gone by now")
        played.disk.sync_file(descriptor)

    first = played.open(dies)
    await played.some(first)
    played.disk.fail("-wal", played.random)
    with suppress(StoreError):
        await played.publish(first)
    await first.close()
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "images")


async def test_who_is_killed_in_a_sync_that_works_stops_nobody(played: Played, tmp_path: Path) -> None:
    other, dead = played.open(), SyncRecord(str(played.path))
    await played.some(other)
    dead.slot().begin()
    async with played.open() as again:
        await played.some(again)
        await played.some(other)
        await played.check(tmp_path / "images")
    # It was repaired once.
    assert not SyncRecord(str(played.path)).suspects()
    dead.release()
    await other.close()


async def test_others_are_killed_in_their_syncs_while_the_log_is_written_again(played: Played, tmp_path: Path) -> None:
    other, dead = played.open(), SyncRecord(str(played.path))
    await played.some(other)
    dead.slot().begin()
    repairs = 0

    def another_dies(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal repairs
        if not offset:
            repairs += 1
            dead.slot().begin()
        return played.disk.write_file(descriptor, data, offset)

    async with played.open(write_file=another_dies) as again:
        await played.some(again)
        await played.some(other)
        await played.check(tmp_path / "images")
    assert repairs > 0
    dead.release()
    await other.close()


@pytest.mark.parametrize("seen", [True, False])
async def test_who_saw_it_is_killed(played: Played, tmp_path: Path, seen: bool) -> None:
    first, other = played.open(), played.open()
    await played.some(first)
    played.disk.fail("-wal", played.random)
    await refused(played, first)
    if seen:
        await refused(played, other)
    kill(played, tmp_path / "killed")
    await first.close()
    await other.close()
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "images")
        kill(played, tmp_path / "killed again")
    async with played.open() as again:
        await played.found(again)


async def test_a_kill_or_a_power_loss_while_the_log_is_written_again(played: Played, tmp_path: Path) -> None:
    jet = played.open()
    await played.some(jet)
    played.disk.fail("-wal", played.random)
    await refused(played, jet)
    await jet.close()

    class PowerLossError(Exception):
        pass

    for step in range(4):
        writes = 0

        def dies(descriptor: int, data: bytes, offset: int, at: int = step) -> int:
            nonlocal writes
            writes += 1
            if writes > at:
                kill(played, tmp_path / f"killed-{at}")
                raise PowerLossError
            # A portion at a time, as a file system may take it.
            return played.disk.write_file(descriptor, data[:5000], offset)

        with pytest.raises(PowerLossError):
            played.open(write_file=dies)
        await played.check(tmp_path / f"images-{step}")
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "images")


async def test_a_copy_of_the_files_without_the_record_is_not_trusted(played: Played, tmp_path: Path) -> None:
    jet = played.open()
    await played.some(jet)
    played.disk.fail("-wal", played.random)
    await refused(played, jet)
    kill(played, tmp_path / "copy")
    await jet.close()
    (tmp_path / "copy" / "a.pelton-sync").unlink()
    async with played.open() as again:
        await played.some(again)
        await played.check(tmp_path / "images")
