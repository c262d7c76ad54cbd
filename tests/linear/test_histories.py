"""Buckets are linearizable: the results of processes on one file, and of clients of a server, have a serial order.

Clients write, compare and set, delete and read the same keys at once, and some are killed in the middle.
``--histories`` sets how many histories are checked (``make linear``: 500).
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

import pelton
from tests.kit.linear import check_history
from tests.kit.nats_server import nats_server
from tests.linear.rounds import Rounds, written
from tests.linear.worker import BUCKET

_HISTORY = 3


async def _played(address: str, histories: int, seed: int, folder: Path) -> None:
    async with pelton.open(address) as jet:
        await jet.create_bucket(BUCKET, history=_HISTORY)
    played, answers = 0, Counter[str]()
    async with Rounds(address, seed) as rounds, aclosing(rounds.play()) as playing:
        async for history in playing:
            found = check_history(history)
            assert not found, f"{found[0]}\nthe history: {written(history, folder)}"
            played += 1
            answers.update(op.answer for op in history)
            # Otherwise nothing would be shown.
            if played >= histories and answers["done"] > histories and answers["refused"] and answers["missing"]:
                break
        kills = rounds.kills
    print(f"\n{played} histories of {answers.total()} operations, {kills} clients killed: {dict(answers)}")


@pytest.fixture
def histories(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--histories"))


@pytest.mark.at_length
async def test_processes_on_one_file(histories: int, tmp_path: Path) -> None:
    await _played(str(tmp_path / "a.pelton"), histories, 1, tmp_path)


@pytest.mark.at_length
async def test_clients_of_a_server(histories: int, tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        await _played(server.url, histories, 2, tmp_path)
