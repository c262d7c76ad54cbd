"""Processes that share a lock are stopped and killed: never two hold it, and somebody has it again.

``make safety`` plays fifty rounds on each backend; ``pytest -s`` shows how long it took until another had the lock.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from pelton.testing.nats_server import nats_server
from tests.stopping import stand_still

TTL = 1
SOON = 120.0


class Line(NamedTuple):
    at: int
    token: int
    kind: str
    who: str


class Worker:
    """One process, and what it wrote."""

    def __init__(self, address: str, folder: Path, name: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        arguments = [address, name, str(self.log), str(TTL), str(folder / "register")]
        self.process = subprocess.Popen([sys.executable, "-m", "tests.locks.worker", *arguments])
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        text = self.log.read_bytes() if self.log.exists() else b""
        # A process that was killed may have begun a line.
        whole = text.rfind(b"\n") + 1
        for line in text[self._read : whole].decode().splitlines():
            kind, at, token = line.split()
            self._lines.append(Line(int(at), int(token), kind, self.name))
        self._read = whole
        return self._lines

    def end(self) -> None:
        self.process.kill()
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()


class Play:
    """Three workers, and what befalls those who hold the lock."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._all: list[Worker] = []
        self._alive = [self._new() for _ in range(3)]
        self.took: dict[str, list[float]] = {"kill": [], "stop": []}

    def _new(self) -> Worker:
        worker = Worker(self._address, self._folder, f"w{len(self._all)}")
        self._all.append(worker)
        return worker

    def lines(self, kind: str) -> list[Line]:
        return [line for worker in self._all for line in worker.lines() if line.kind == kind]

    async def holder(self, after: int) -> Line:
        """Return the first line that tells of a larger token."""
        end = time.monotonic() + SOON
        while time.monotonic() < end:
            found = [line for line in self.lines("hold") if line.token > after]
            if found:
                return min(found)
            await asyncio.sleep(0.005)
        raise AssertionError(f"nobody has the lock after token {after}: {sorted(self.lines('hold'))[-5:]}")

    async def round(self, what: str) -> None:
        last = await self.holder(max((line.token for line in self.lines("hold")), default=0))
        holder = next(worker for worker in self._alive if worker.name == last.who)
        if what == "stop":
            stand_still(holder.process.pid, self._address)
        else:
            holder.process.kill()
            holder.process.wait()
        begin = time.monotonic_ns()
        # It may have given the lock back at the last moment: of what came after, only a later token counts.
        last_token = max(line.token for line in self.lines("hold"))
        others = await self.holder(last_token)
        self.took[what].append((others.at - begin) / 1e9)
        if what == "stop":
            holder.process.send_signal(signal.SIGCONT)
        else:
            self._alive.remove(holder)
            self._alive.append(self._new())

    def close(self) -> None:
        for worker in self._alive:
            worker.end()

    def check(self) -> None:
        lines = sorted(self.lines("hold"))
        for earlier, later in pairwise(lines):
            assert later.token >= earlier.token, f"{later} though {earlier}"
        owners = {(line.token, line.who) for line in lines}
        assert len(owners) == len({token for token, _ in owners}), "two were given one token"
        written = [int(token) for token in (self._folder / "register").read_text().split()]
        assert written == sorted(written)
        assert set(written) <= {token for token, _ in owners} | {line.token for line in self.lines("wrote")}


@pytest.fixture(params=["file", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "s.pelton")
        return
    with nats_server(tmp_path / "nats") as server:
        yield server.url


async def test_never_two_processes_hold_it_and_somebody_has_it_again(
    address: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    play = Play(address, tmp_path)
    try:
        for number in range(int(pytestconfig.getoption("stopped"))):
            await play.round(("stop", "kill")[number % 2])
        # Those that were woken again find that they hold nothing.
        await play.holder(max(line.token for line in play.lines("hold")))
    finally:
        play.close()
    play.check()
    for what, took in play.took.items():
        if took:
            took.sort()
            print(f"{what}: median {took[len(took) // 2] * 1e3:.0f} ms, longest {took[-1] * 1e3:.0f} ms of {len(took)}")
    print(f"writes refused: {len(play.lines('refused'))}")
