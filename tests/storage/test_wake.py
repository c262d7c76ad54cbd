"""The channel by which processes wake each other."""

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
        await asyncio.wait_for(self._event.wait(), 10)
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
    """The time stamp of the folder moves in ticks: who reads it and comes in one is not seen by it."""
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
    folder.mkdir()
    for number in (1, 2, 3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(folder / f"{os.getpid()}-{number}"))
    monkeypatch.setattr(wake, "_count", count(1))
    channel = WakeChannel(str(tmp_path / "a"), Woken(), time.monotonic)
    assert not channel.polled
    channel.wake_others()
    assert os.listdir(folder) == [f"{os.getpid()}-4"]
    channel.close()
    assert os.listdir(tmp_path) == []


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
    assert MemoryChannel._members == {}
