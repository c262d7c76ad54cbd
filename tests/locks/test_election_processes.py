"""Candidates in processes that are stopped, killed and ended: never two lead, and somebody leads again.

``make safety`` plays fifty rounds on each backend; ``pytest -s`` shows how long each change of leader took.
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
from random import Random
from typing import NamedTuple

import pytest

from pelton.testing.nats_server import nats_server

TTL = 1.0
SOON = 120.0


class Line(NamedTuple):
    at: int
    token: int
    kind: str
    who: str


class Candidate:
    """One process, and what it wrote."""

    def __init__(self, address: str, folder: Path, name: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", "tests.locks.candidate", address, name, str(self.log), str(TTL)]
        self.process = subprocess.Popen(command)
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        if not self.log.exists():
            return []
        text = self.log.read_bytes()
        # A process that was killed may have begun a line.
        whole = text.rfind(b"\n") + 1
        for line in text[self._read : whole].decode().splitlines():
            kind, at, token = line.split()
            self._lines.append(Line(int(at), int(token), kind, self.name))
        self._read = whole
        return self._lines

    async def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "T":
            await asyncio.sleep(0.001)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Play:
    """Three candidates, and what befalls those who lead."""

    def __init__(self, address: str, folder: Path, seed: int) -> None:
        self._address = address
        self._folder = folder
        self._random = Random(seed)
        self._all: list[Candidate] = []
        self._alive = [self._new() for _ in range(3)]
        self.took: dict[str, list[float]] = {"kill": [], "stop": [], "end": []}

    def _new(self) -> Candidate:
        candidate = Candidate(self._address, self._folder, f"c{len(self._all)}")
        self._all.append(candidate)
        return candidate

    def lines(self) -> list[Line]:
        return [line for candidate in self._all for line in candidate.lines()]

    async def leader(self, after: int, stopped: Candidate | None = None) -> Line:
        """Return the first line of a term with a larger token; wake who is ``stopped`` if there is none for long."""
        end = time.monotonic() + SOON
        while time.monotonic() < end:
            found = [line for line in self.lines() if line.kind == "lead" and line.token > after]
            if found:
                return min(found)
            if stopped is not None and time.monotonic() > end - SOON / 2:
                # It was stopped within a transaction of SQLite's, and keeps everybody out.
                stopped.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.005)
        raise AssertionError(f"nobody leads after token {after}: {sorted(self.lines())[-5:]}")

    async def up(self) -> None:
        """Wait until all take part: those that come later are not to be counted as taking over."""
        end = time.monotonic() + SOON
        while not all(candidate.lines() for candidate in self._alive):
            assert time.monotonic() < end, "a candidate did not start"
            await asyncio.sleep(0.01)

    async def round(self, what: str) -> None:
        await self.up()
        token = max(line.token for line in self.lines())
        leading = next(line.who for line in self.lines() if line.token == token)
        leader = next((one for one in self._alive if one.name == leading), None)
        if leader is None:  # it was ended, and nobody has won since
            await self.leader(token)
            return
        begin = time.monotonic_ns()
        if what == "stop":
            await leader.stop()
        else:
            leader.process.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
        won = await self.leader(token, leader if what == "stop" else None)
        if what == "stop":
            leader.process.send_signal(signal.SIGCONT)
        else:
            leader.process.wait()
            self._alive.remove(leader)
            self._alive.append(self._new())
        self.took[what].append((won.at - begin) / 1e9)

    def close(self) -> None:
        for candidate in self._alive:
            candidate.end()

    def check(self) -> None:
        lines = sorted(line for line in self.lines() if line.kind == "lead")
        for earlier, later in pairwise(lines):
            assert later.token >= earlier.token, f"{later} though {earlier}"
        owners = {(line.token, line.who) for line in lines}
        assert len(owners) == len({token for token, _ in owners}), "two were given one token"


@pytest.fixture(params=["file", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "s.pelton")
        return
    with nats_server(tmp_path / "nats") as server:
        yield server.url


async def test_never_two_processes_lead_and_somebody_leads_again(
    address: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    rounds = int(pytestconfig.getoption("stopped"))
    play = Play(address, tmp_path, rounds)
    try:
        await play.leader(0)
        for number in range(rounds):
            await play.round(("stop", "kill", "end")[number % 3])
    finally:
        play.close()
    play.check()
    for what, took in play.took.items():
        if took:
            took.sort()
            print(f"{what}: median {took[len(took) // 2] * 1e3:.0f} ms, longest {took[-1] * 1e3:.0f} ms of {len(took)}")
