"""A store's file has one name, is private to its user, and its removal is noticed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import StoreError, StoreGoneError, StoreSettingsError
from pelton.engine.salvage import recount
from tests.storage.processes import Child, hear_in_child
from tests.storage.stores import a_store, last_seq, open_engine, raw


async def _holds(pipe: Connection, path: Path, count: int = 0) -> None:
    """Keep a store open, with some messages acknowledged, until the test sends a message."""
    async with pelton.open(path) as jet:
        for _ in range(count):
            await jet.publish("s.held", b"held")
        pipe.send("open")
        await hear_in_child(pipe)


def held(path: Path, count: int = 0) -> Child:
    child = Child(_holds, path, count)
    assert child.hear() == "open"
    return child


async def refusal(path: Path) -> str:
    with pytest.raises(StoreSettingsError) as caught:
        await pelton.open(path)
    return str(caught.value)


# --- one file, one name


async def test_a_hard_link_of_a_store_that_is_open_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_store(path)
    os.link(path, other)
    with held(path) as child:
        assert "another name" in await refusal(other)
        async with pelton.open(path) as jet:
            assert (await jet.publish("s.1")).seq == 4
        child.say("close")
        child.join()
    async with pelton.open(other) as jet:
        assert await last_seq(jet) == 4
        # And by the same process.
        assert "another name" in await refusal(path)
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "b.pelton"]
    assert recount(str(path)) == []


async def test_a_link_that_nobody_uses_is_worth_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    os.link(path, tmp_path / "kept-by-a-backup")
    for _ in range(2):
        async with pelton.open(path) as jet:
            await jet.publish("s.1")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1, said
    assert str(path) in said[0]
    assert "2 names" in said[0]


async def test_a_file_that_was_moved_while_it_is_open_is_refused_by_its_new_name(tmp_path: Path) -> None:
    path, other = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_store(path)
    with held(path, 3) as child:
        path.rename(other)
        assert "another name" in await refusal(other)
        # It checkpoints its WAL into the file that it has open, wherever that is now.
        child.say("close")
        child.join()
    async with pelton.open(other) as jet:
        assert await last_seq(jet) == 6
    assert recount(str(other)) == []


async def test_the_log_of_an_opener_that_was_killed_is_found_by_any_name(tmp_path: Path) -> None:
    path, other = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_store(path)
    os.link(path, other)
    with held(path, 3) as child:
        child.kill()
    assert str(path) + "-wal" in await refusal(other)
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 6
    async with pelton.open(other) as jet:
        assert await last_seq(jet) == 6
    assert recount(str(other)) == []


async def test_a_store_moved_without_its_log_is_refused_until_they_are_together(tmp_path: Path) -> None:
    path, other = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_store(path)
    with held(path, 3) as child:
        child.kill()
    path.rename(other)
    assert str(path) + "-wal" in await refusal(other)
    # Nor is a new store created beside it, which would delete it.
    assert str(path) + "-wal" in await refusal(path)
    assert not path.exists()
    Path(f"{path}-wal").rename(f"{other}-wal")
    async with pelton.open(other) as jet:
        assert await last_seq(jet) == 6
    await a_store(path)
    assert recount(str(other)) == []


async def test_a_killed_opener_leaves_nothing_that_refuses(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "copy.pelton"
    await a_store(path)
    for count in range(1, 4):
        with held(path, 1) as child, held(path) as second:
            child.kill()
            second.kill()
        async with pelton.open(path) as jet:
            assert await last_seq(jet) == 3 + count
    # A copy with all its attributes is another store.
    with held(path, 1):
        subprocess.run(["cp", "-a", str(path), str(copy)], check=True)
        async with pelton.open(copy) as jet:
            assert await last_seq(jet) == 6


async def test_folders_may_have_many_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = tmp_path / "real" / "a.pelton"
    await a_store(path)
    with held(path):
        async with pelton.open(tmp_path / "link" / "a.pelton") as jet:
            assert (await jet.publish("s.1")).seq == 4


async def test_a_log_that_is_removed_under_an_opener_is_not_begun_anew_by_another(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with held(path, 3) as child:
        for suffix in ("-wal", "-shm"):
            os.unlink(f"{path}{suffix}")
        refused = await refusal(path)
        assert "its log was removed" in refused
        assert f"open in process {child.process.pid}" in refused
        child.say("close")
        child.join()
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 6
    assert recount(str(path)) == []


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["link", "folder"])
async def test_what_has_the_name_of_a_stores_file_is_named_and_left_alone(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    path, beside = tmp_path / "a.pelton", tmp_path / f"a.pelton{suffix}"
    await a_store(path)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    beside.symlink_to(precious) if kind == "link" else beside.mkdir()
    assert str(beside) in await refusal(path)
    assert precious.read_text() == "precious"
    assert beside.is_symlink() or beside.is_dir()
    beside.unlink() if kind == "link" else beside.rmdir()
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 3


_MOUNTED = """
import asyncio, pelton, sys
async def main(path):
    try:
        async with pelton.open(path) as jet:
            print("opened", (await jet.publish("s.1")).seq)
    except pelton.StoreSettingsError as error:
        print(error)
asyncio.run(main(sys.argv[1]))
"""


def _mounts(tmp_path: Path, source: Path, target: Path) -> str:
    """Open a store in its own mount namespace, in which ``source`` is mounted on ``target``."""
    shell = 'mount --make-rprivate / && mount --bind "$1" "$2" && exec "$3" -c "$4" "$5"'
    opened = target if target.is_file() else target / "a.pelton"
    command = [
        "unshare",
        "-m",
        "sh",
        "-c",
        shell,
        "sh",
        str(source),
        str(target),
        sys.executable,
        _MOUNTED,
        str(opened),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_file_that_is_mounted_by_itself_is_refused_a_folder_is_not(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("only root mounts")
    (tmp_path / "host").mkdir()
    (tmp_path / "container").mkdir()
    path = tmp_path / "host" / "a.pelton"
    await a_store(path)
    point = tmp_path / "container" / "a.pelton"
    point.touch()
    said = _mounts(tmp_path, path, point)
    assert "mounted by itself" in said
    assert "mount the folder" in said
    async with pelton.open(path):
        assert _mounts(tmp_path, path.parent, tmp_path / "container") == "opened 4\n"
    assert recount(str(path)) == []


# --- a store that is gone


def _remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def _remove_file(path: Path) -> None:
    path.unlink()


def _remove_log(path: Path) -> None:
    os.unlink(f"{path}-wal")


def _move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def _move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def _replace(path: Path) -> None:
    other = path.with_name("other")
    asyncio.run(a_store(other, 1))
    other.rename(path)


GONE: list[Callable[[Path], None]] = [_remove, _remove_file, _remove_log, _move, _move_folder, _replace]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "a.pelton"


@pytest.mark.parametrize("befalls", GONE)
async def test_nothing_is_acknowledged_into_a_store_that_is_gone(path: Path, befalls: Callable[[Path], None]) -> None:
    await a_store(path)
    jet = await pelton.open(path)
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c", deliver_policy="new")
    await jet.publish("s.1")
    (message,) = await consumer.fetch(1)
    await asyncio.to_thread(befalls, path)
    calls: list[Any] = [
        jet.publish("s.1"),
        jet.publish_batch([("s.1", b"")] * 100),
        message.ack(),
        consumer.fetch(1),
        jet.create_stream("t"),
    ]
    for call in calls:
        with pytest.raises(StoreGoneError) as caught:
            await call
        assert str(path) in str(caught.value)
    await jet.close()


@pytest.mark.parametrize("befalls", [_remove, _replace])
@pytest.mark.parametrize(
    "operation",
    [
        lambda jet: jet.backend.clone(),
        lambda jet: jet.backup("never"),
        lambda jet: _in_transaction(jet),
        lambda jet: _waits(jet),
    ],
    ids=["clone", "backup", "transaction", "pull"],
)
async def test_nothing_is_done_to_what_has_taken_its_place(
    path: Path,
    befalls: Callable[[Path], None],
    operation: Callable[[pelton.Jet], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(path.parent)
    await a_store(path)
    async with pelton.open(path) as jet:
        await (await jet.stream("s")).create_consumer(durable_name="c", deliver_policy="new")
        await asyncio.to_thread(befalls, path)
        with pytest.raises(StoreGoneError):
            await operation(jet)


async def _in_transaction(jet: pelton.Jet) -> None:
    async with jet.transaction() as tx:
        await tx.publish("s.1", b"")


async def _waits(jet: pelton.Jet) -> None:
    await (await (await jet.stream("s")).consumer("c")).fetch(1, timeout=None)


@pytest.mark.parametrize("sync", ["interval", "off"])
async def test_without_a_sync_it_is_noticed_within_the_interval(path: Path, sync: Any) -> None:
    await a_store(path)
    async with open_engine(path, sync=sync, interval=0.01) as jet:
        _remove(path)
        with pytest.raises(StoreGoneError):
            await _publish_for_ever(jet)


async def _publish_for_ever(jet: pelton.Jet) -> None:
    while True:
        await jet.publish("s.1")


async def test_a_new_store_at_the_path_is_left_alone_by_the_old_opener(path: Path) -> None:
    await a_store(path)
    old = await pelton.open(path)
    await old.publish("s.old")
    _remove(path)
    await a_store(path, 1)
    async with pelton.open(path) as new:
        await new.publish("s.new")
        with pytest.raises(StoreGoneError):
            await old.publish("s.old")
        await old.close()
        # Closing removes the WAL and the folder of the last opener: by name, but not those of another file.
        beside = ["a.pelton-shm", "a.pelton-sync", "a.pelton-wake", "a.pelton-wal"]
        assert sorted(os.listdir(path.parent)) == ["a.pelton", *beside]
        await new.publish("s.new")
        async with pelton.open(path) as third:
            assert await last_seq(third) == 3
    assert recount(str(path)) == []


async def test_a_store_that_was_moved_keeps_what_it_acknowledged(path: Path) -> None:
    await a_store(path)
    async with pelton.open(path) as jet:
        await jet.publish("s.1")
        _move(path)
        with pytest.raises(StoreGoneError):
            await jet.publish("s.lost")
    async with pelton.open(path.with_name("moved")) as jet:
        assert await last_seq(jet) >= 4
    assert recount(str(path.with_name("moved"))) == []


async def test_other_things_may_come_and_go_beside_it(path: Path) -> None:
    await a_store(path)
    async with pelton.open(path) as jet:
        for number in range(20):
            (path.parent / f"other-{number}").touch()
            await jet.publish("s.1")
            (path.parent / f"other-{number}").unlink()
            await jet.publish("s.1")
        assert await last_seq(jet) == 43


# --- who may read it


def modes(folder: Path) -> dict[str, str]:
    return {each.name: oct(each.stat().st_mode & 0o777) for each in folder.iterdir()}


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Any:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("options", "file", "folder"), [({}, "0o600", "0o700"), ({"mode": 0o660}, "0o660", "0o770")])
async def test_a_store_is_for_its_owner_or_the_group_it_was_made_for(
    path: Path, options: Any, file: str, folder: str
) -> None:
    async with pelton.open(path, **options) as jet:
        await jet.create_stream("s")
        await jet.publish("s")
        assert modes(path.parent) == {
            "a.pelton": file,
            "a.pelton-wal": file,
            "a.pelton-shm": file,
            "a.pelton-sync": file,
            "a.pelton-wake": folder,
        }
        assert set(modes(path.parent / "a.pelton-wake").values()) == {file}
    # Later openers do not change it.
    async with pelton.open(path, mode=0o664) as jet:
        await jet.publish("s")
        assert modes(path.parent)["a.pelton-wal"] == file
    assert modes(path.parent) == {"a.pelton": file}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o600, 0o660])
async def test_copies_are_for_those_who_may_read_the_store(path: Path, mode: int) -> None:
    async with pelton.open(path, mode=mode) as jet:
        await jet.create_stream("s")
        await jet.publish("s")
        await jet.backup(path.with_name("backup"))
        await jet.backup(path.with_name("streams"), streams=["s"])
    pelton.restore(path.with_name("backup"), path.with_name("restored"))
    pelton.salvage(path, path.with_name("salvaged"))
    pelton.compact(path)
    pelton.rekey(path, None, "key")
    assert len(modes(path.parent)) == 5
    assert set(modes(path.parent).values()) == {oct(mode)}


async def test_nothing_of_a_copy_can_be_read_by_others_while_it_is_written(path: Path) -> None:
    before = os.umask(0)
    try:
        await a_store(path, 500)
        seen: set[str] = set()
        for streams in (None, ["s"]):
            target = path.with_name(f"copy-{streams}")
            async with pelton.open(path) as jet:
                await jet.backup(target, streams=streams, progress=lambda *_: seen.update(modes(path.parent).values()))
    finally:
        os.umask(before)
    assert seen == {"0o600", "0o700"}


async def test_a_copy_of_what_is_read_only_can_be_written(path: Path) -> None:
    await a_store(path)
    path.chmod(0o600)
    pelton.backup(path, path.with_name("backup"))
    path.with_name("backup").chmod(0o400)
    if os.geteuid() != 0:
        pytest.skip("only root opens what is read-only")
    pelton.restore(path.with_name("backup"), path.with_name("restored"))
    assert modes(path.parent)["restored"] == "0o600"


@pytest.mark.parametrize("mode", [0o400, 0o700, 0o060, 600, 0o1600, "0600", True, None.__class__])
def test_permissions_that_are_none(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(pelton.ConfigError, match="mode"):
        pelton.open(tmp_path / "a", mode=mode)


def test_permissions_are_of_files() -> None:
    for address in ("memory:", "nats://host"):
        with pytest.raises(pelton.ConfigError, match="mode"):
            pelton.open(address, mode=0o600)


async def test_a_failure_to_open_lets_go_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with raw(path) as connection:
        connection.execute("CREATE TABLE theirs(a)")
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        with pytest.raises(StoreError):
            await pelton.open(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)
