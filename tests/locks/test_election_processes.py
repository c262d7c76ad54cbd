"""Candidates in processes that are paused, killed and terminated: never two leaders, and always a next one.

``make safety`` runs fifty rounds on each backend; ``pytest -s`` shows how long each change of leader took.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.locks.processes import SOON, Line, Process, check_tokens, tell
from tests.stopping import stand_still

TTL = 1.0


class Play:
    """Three candidates, and the failures of leaders."""

    def __init__(self, address: str, folder: Path, seed: int) -> None:
        self._address = address
        self._folder = folder
        self._random = Random(seed)
        self._all: list[Process] = []
        self._alive = [self._new() for _ in range(3)]
        self.took: dict[str, list[float]] = {"kill": [], "stop": [], "end": []}

    def _new(self) -> Process:
        candidate = Process("candidate", self._address, self._folder, f"c{len(self._all)}", TTL)
        self._all.append(candidate)
        return candidate

    def lines(self) -> list[Line]:
        return [line for candidate in self._all for line in candidate.lines()]

    async def leader(self, after: int) -> Line:
        """Return the first line of a term with a larger token."""
        end = time.monotonic() + SOON
        while time.monotonic() < end:
            found = [line for line in self.lines() if line.kind == "lead" and line.token > after]
            if found:
                return min(found)
            await asyncio.sleep(0.02)
        raise AssertionError(f"nobody leads after token {after}: {sorted(self.lines())[-5:]}")

    async def up(self) -> None:
        """Wait until all take part: late ones must not be counted as taking over."""
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
            stand_still(leader.process.pid, self._address)
        else:
            leader.process.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
        won = await self.leader(token)
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
        check_tokens([line for line in self.lines() if line.kind == "lead"])


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
    tell(play.took)
