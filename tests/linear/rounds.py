"""Rounds of clients in processes, some of which are killed in the middle; each round yields a history."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.kit.linear import Op
from tests.linear.worker import Round

_PATIENCE_S = 120
_OPERATIONS = 12


class Worker:
    """A process with a client in it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def begin(cls, address: str, name: str) -> Worker:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "tests.linear.worker", address, name)
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        worker = cls(process)
        assert await worker._line() == b"\n", "the client did not begin"
        return worker

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(_PATIENCE_S):
            return await self._process.stdout.readline()

    async def run(self, asked: Round, kill_after: int) -> list[Op]:
        """Run a round, killed after that many lines (-1: not at all); return the last report of each operation."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        said: dict[int, Op] = {}
        for number in count():
            if number == kill_after:
                self._process.kill()
            line = await self._line()
            if not line.endswith(b"\n") or line == b"\n":
                assert line or 0 <= kill_after <= number, "a client died that nobody has killed"
                break
            op = msgspec.json.decode(line, type=Op)
            said[op.called] = op
        return list(said.values())

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Rounds:
    """Clients of one address. A seed determines which are killed, and when."""

    def __init__(self, address: str, seed: int, clients: int = 4) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._names = (f"c{number}" for number in count())
        self._clients = clients
        self._workers: list[Worker] = []
        self.kills = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(worker.end() for worker in self._workers))

    async def play(self) -> AsyncIterator[list[Op]]:
        """Yield the history of one round after the other, without an end."""
        for number in count():
            missing = self._clients - len(self._workers)
            begun = (Worker.begin(self._address, next(self._names)) for _ in range(missing))
            self._workers += await asyncio.gather(*begun)
            asked = Round(number, self._random.randrange(1 << 30), _OPERATIONS)
            kills = [self._kill() for _ in self._workers]
            pairs = zip(self._workers, kills, strict=True)
            found = await asyncio.gather(*(worker.run(asked, kill) for worker, kill in pairs))
            await self._bury(kills)
            yield [op for ops in found for op in ops]

    def _kill(self) -> int:
        """After how many lines a client is killed in this round: usually it is not."""
        return self._random.randrange(1, 2 * _OPERATIONS) if self._random.random() < 0.1 else -1

    async def _bury(self, kills: list[int]) -> None:
        dead = [worker for worker, kill in zip(self._workers, kills, strict=True) if kill >= 0]
        self.kills += len(dead)
        self._workers = [worker for worker in self._workers if worker not in dead]
        await asyncio.gather(*(worker.end() for worker in dead))


def written(history: list[Op], folder: Path) -> Path:
    """Save a history that is wrong, and return where."""
    path = folder / "history.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(op) for op in sorted(history, key=lambda op: op.called)))
    return path
