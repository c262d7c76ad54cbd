"""The channel through which processes wake each other."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from itertools import count
from pathlib import Path

import pytest

from pelton.storage import MemoryChannel, WakeChannel, wake


class Woken:
    """Counts its wake-ups; ``await once()`` returns after the next."""

    def __init__(self) -> None:
        self.times = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._event.set()

    async def once(self) -> None:
        await asyncio.wait_for(self._event.wait(), 60)
        self._event.clear()


async def test_a_byte_reaches_everyone_else(tmp_path: Path) -> None:
    woken = [Woken() for _ in range(3)]
    channels = [WakeChannel(str(tmp_path / "a"), each, time.monotonic) for each in woken]
    for _ in range(3):
        channels[0].wake_others()
        await woken[1].once()
        await woken[2].once()
    assert woken[0].times == 0
    newcomer = Woken()
    channels.append(WakeChannel(str(tmp_path / "a"), newcomer, time.monotonic))
    channels[0].wake_others()
    await newcomer.once()
    for channel in channels:
        channel.close()
    assert os.listdir(tmp_path) == []


async def test_who_comes_in_the_same_tick_of_the_folder_is_not_missed(tmp_path: Path) -> None:
    """The folder's timestamp advances in ticks: a process that joins within the tick of a read is not seen by it."""
    seconds = [0.0]
    first = WakeChannel(str(tmp_path / "a"), Woken(), lambda: seconds[0])
    others = []
    for passed in (0.0, 0.05, 5.0, 0.05):
        seconds[0] += passed
        first.wake_others()
        woken, stamp = Woken(), os.stat(tmp_path / "a-wake").st_mtime_ns
        others.append(WakeChannel(str(tmp_path / "a"), woken, time.monotonic))
        if passed < 1:
            os.utime(tmp_path / "a-wake", ns=(stamp, stamp))
        assert first.is_alive(others[-1].name)
        first.wake_others()
        await woken.once()
    for channel in (first, *others):
        channel.close()


async def test_a_number_that_a_dead_process_had_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a-wake"
    folder.mkdir(0o700)
    monkeypatch.setattr(wake, "_count", count(1))
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(folder / wake._new_name()))
    fourth = wake._new_name()
    monkeypatch.setattr(wake, "_count", count(1))
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    assert not channel.polled
    channel.wake_others()
    assert os.listdir(folder) == [fourth]
    channel.close()
    assert os.listdir(tmp_path) == []


async def test_one_that_died_is_gone_as_soon_as_it_is_asked(tmp_path: Path) -> None:
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    other = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "a-wake" / "1-1"))
        assert not channel.is_gone("1-1")
    assert channel.is_alive("1-1")
    assert channel.is_gone("1-1")
    assert not channel.is_gone(other.name)
    other.close()
    assert channel.is_gone(other.name)
    assert not channel.is_gone(channel.name)
    channel.close()


async def test_the_last_to_leave_takes_along_what_the_dead_left(tmp_path: Path) -> None:
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(tmp_path / "a-wake" / "1-1"))
    dead.close()
    channel.close()
    assert os.listdir(tmp_path) == []


async def test_without_a_folder_there_is_polling(tmp_path: Path) -> None:
    (tmp_path / "a-wake").touch()
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    assert channel.polled
    channel.wake_others()
    channel.close()
    channel.close()


# --- what stands under the folder's name may be somebody else's


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pelton.storage"]


async def _used(path: Path) -> WakeChannel:
    """Open a channel as a store does, wake everyone, and leave."""
    channel = WakeChannel(str(path), Woken(), time.monotonic)
    channel.wake_others()
    channel.wake_others()
    channel.close()
    return channel


async def test_a_folder_with_other_things_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "a-wake"
    folder.mkdir()
    others = ["notes.txt", ".hidden", "123-4", f"{os.getpid()}-1x"]
    for name in others:
        (folder / name).write_text("precious")
    (folder / "1-1").symlink_to(tmp_path / "elsewhere")
    (folder / "7-7").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(str(folder / "theirs.sock"))
    assert not (await _used(tmp_path / "a")).polled
    assert sorted(os.listdir(folder)) == sorted([*others, "1-1", "7-7", "theirs.sock"])
    assert all((folder / name).read_text() == "precious" for name in others)


async def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "1-1").write_text("precious")
    (tmp_path / "a-wake").symlink_to(theirs)
    assert (await _used(tmp_path / "a")).polled
    assert (await _used(tmp_path / "a")).polled
    assert os.listdir(theirs) == ["1-1"]
    assert (tmp_path / "a-wake").is_symlink()
    (said,) = _warnings(caplog)
    assert str(tmp_path / "a-wake") in said
    assert "link" in said


async def test_an_empty_folder_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "a-wake").mkdir(0o755)
    await _used(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a-wake"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
async def test_a_folder_of_a_stranger_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "a-wake"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    assert (await _used(tmp_path / "a")).polled
    assert "uid 12345" in _warnings(caplog)[0]
    assert folder.stat().st_mode & 0o777 == 0o755
    # The store's owner may create it, and so may those who share the store with us by its group.
    store = tmp_path / "a"
    store.touch(0o600)
    os.chown(store, 12345, 0)
    assert not (await _used(store)).polled
    os.chown(store, 54321, 12345)
    assert (await _used(store)).polled
    store.chmod(0o660)
    assert not (await _used(store)).polled


@pytest.mark.parametrize(("mode", "folder_mode"), [(0o600, 0o700), (0o660, 0o770), (0o644, 0o700), (0o666, 0o777)])
async def test_who_may_write_to_the_store_may_wake_its_openers(tmp_path: Path, mode: int, folder_mode: int) -> None:
    store = tmp_path / "a"
    store.touch()
    store.chmod(mode)
    if os.geteuid() == 0:
        os.chown(store, 12345, 12346)
    channel = WakeChannel(str(store), Woken(), time.monotonic)
    folder, socket_file = tmp_path / "a-wake", tmp_path / "a-wake" / channel.name
    assert folder.stat().st_mode & 0o777 == folder_mode
    assert socket_file.stat().st_mode & 0o777 == folder_mode & 0o666
    for made in (folder, socket_file):
        assert (made.stat().st_uid, made.stat().st_gid) == (store.stat().st_uid, store.stat().st_gid)
    channel.close()
    assert os.listdir(tmp_path) == ["a"]


async def test_a_name_out_of_the_store_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    channel.wake("../precious")
    channel.wake(f"../a-wake/{channel.name}")
    assert not channel.is_alive("../precious")
    channel.close()
    assert os.listdir(tmp_path) == ["precious"]


async def test_memory_stores_wake_by_name() -> None:
    woken, other = Woken(), Woken()
    first = MemoryChannel("a", Woken(), time.monotonic)
    second = MemoryChannel("a", woken, time.monotonic)
    stranger = MemoryChannel("b", other, time.monotonic)
    first.wake_others()
    await woken.once()
    assert (woken.times, other.times) == (1, 0)
    for channel in (first, second, stranger):
        channel.close()
    # A store in memory that another test has not closed may still be here.
    assert not {"a", "b"} & MemoryChannel._members.keys()


async def test_one_without_a_socket_is_there_as_long_as_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    with monkeypatch.context() as patched:
        patched.setattr(WakeChannel, "_join", lambda self: False)
        refused = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    process, number = refused.name.split("-")[:2]
    for each in (channel, refused):
        assert each.is_alive(channel.name)
        assert each.is_alive(refused.name)
        # No process has this id; in another container one may.
        assert not each.is_alive(f"999999999-{number}-polled")
        assert each.is_alive(f"999999999-1{number}-polled")
        assert not each.is_alive("999999999-../a-polled")
    assert not refused.is_alive(f"999999999-{number}")
    assert refused.is_alive(f"999999999-1{number}")
    assert process == str(os.getpid())
    channel.close()
    refused.close()
