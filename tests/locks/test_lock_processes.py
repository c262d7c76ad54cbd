"""Processes that share a lock are paused and killed: never two holders, and always a next one.

``make safety`` runs fifty rounds on each backend; ``pytest -s`` shows how long it took until another had the lock.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.locks.processes import SOON, Line, Process, check_tokens, tell
from tests.stopping import stand_still

TTL = 1


class Play:
    """Three workers, and the failures of holders."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._all: list[Process] = []
        self._alive = [self._new() for _ in range(3)]
        self.took: dict[str, list[float]] = {"kill": [], "stop": []}

    def _new(self) -> Process:
        worker = Process("worker", self._address, self._folder, f"w{len(self._all)}", TTL, self._folder / "register")
        self._all.append(worker)
        return worker

    def lines(self, kind: str) -> list[Line]:
        return [line for worker in self._all for line in worker.lines() if line.kind == kind]

    async def holder(self, after: int) -> Line:
        """Return the first line with a larger token."""
        end = time.monotonic() + SOON
        while time.monotonic() < end:
            found = [line for line in self.lines("hold") if line.token > after]
            if found:
                return min(found)
            await asyncio.sleep(0.02)
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
        # It may have released the lock at the last moment: after that, only a later token counts.
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
        owners = check_tokens(self.lines("hold"))
        written = [int(token) for token in (self._folder / "register").read_text().split()]
        assert written == sorted(written)
        assert set(written) <= {token for token, _ in owners} | {line.token for line in self.lines("wrote")}


async def test_never_two_processes_hold_it_and_somebody_has_it_again(
    address: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    play = Play(address, tmp_path)
    try:
        for number in range(int(pytestconfig.getoption("stopped"))):
            await play.round(("stop", "kill")[number % 2])
        # Those that were resumed find that they hold nothing.
        await play.holder(max(line.token for line in play.lines("hold")))
    finally:
        play.close()
    play.check()
    tell(play.took)
    print(f"writes refused: {len(play.lines('refused'))}")
