"""Workers that are killed while they run flows: every node ends once, as it should, and after those before it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from pelton.queue import FlowHandle, FlowNode, Queue
from tests.queue.flow.worker_process import QUEUE, register
from tests.queue.helpers import ROOT, open_store

ON_BOTH = pytest.mark.parametrize("path", ["file", "nats"], indirect=True)


class Planned(NamedTuple):
    """A node: those before it, whether it fails, and whether it runs when others have failed."""

    before: tuple[int, ...]
    fails: bool
    runs_anyway: bool


def plan(chance: random.Random) -> list[Planned]:
    found = list[Planned]()
    for number in range(chance.randint(4, 14)):
        before = chance.sample(range(number), min(number, chance.choice([0, 1, 1, 2, 3])))
        found.append(Planned(tuple(sorted(before)), chance.random() < 0.15, chance.random() < 0.3))
    return found


def expected(nodes: list[Planned]) -> list[str]:
    states = list[str]()
    for node in nodes:
        is_blocked = not node.runs_anyway and any(states[one] != "completed" for one in node.before)
        states.append("cancelled" if is_blocked else "failed" if node.fails else "completed")
    return states


async def enqueue(queue: Queue, nodes: list[Planned]) -> FlowHandle:
    flow = await queue.new_flow()
    added = list[FlowNode[int]]()
    for number, node in enumerate(nodes):
        options = flow.options(on_failure="run" if node.runs_anyway else "cancel")
        results = [added[one].result for one in node.before]
        added.append(options.add(queue.jobs_by_name["node"], flow.id, number, node.fails, results))
    return await flow.enqueue()


class Workers:
    """Two processes, one of which is killed and replaced again and again."""

    def __init__(
        self, store: str, journal: Path, chance: random.Random, program: str = "tests.queue.flow.worker_process"
    ) -> None:
        self._command = [sys.executable, "-m", program, store, str(journal)]
        self._chance = chance
        self.kills = 0
        self.running = [self._start(), self._start()]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_one(self) -> None:
        index = self._chance.randrange(2)
        self.running[index].kill()
        self.running[index].wait()
        self.running[index] = self._start()
        self.kills += 1

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@ON_BOTH
async def test_workers_are_killed(path: str, tmp_path: Path) -> None:
    chance, journal = random.Random(7), tmp_path / "journal"
    plans = [plan(chance) for _ in range(40)]
    async with open_store(path) as jet:
        queue = await jet.queue(QUEUE, lease=1)
        register(queue, str(journal))
        workers = Workers(path, journal, chance)
        try:
            handles = list[FlowHandle]()
            for nodes in plans:
                handles.append(await enqueue(queue, nodes))
                await asyncio.sleep(0.05)
                if chance.random() < 0.2:
                    workers.kill_one()
            while [info async for info in queue.flows(state="running")]:
                await asyncio.sleep(1.5)
                if workers.kills < 20:
                    workers.kill_one()
            infos = [await handle.outcome(timeout=60) for handle in handles]
            async with asyncio.timeout(60):
                # On servers, a killed worker may have left cancelled nodes to one that gets their event after it.
                while len([outcome async for outcome in queue.history()]) < sum(map(len, plans)):
                    await asyncio.sleep(0.2)
                # Its outcome comes before its ack: who is killed in between leaves a job that has ended.
                while (await queue.counts()).unfinished:
                    await asyncio.sleep(0.2)
        finally:
            workers.end()
        ended = Counter([outcome.id async for outcome in queue.history()])
        assert [[node.state for node in info.nodes] for info in infos] == [expected(nodes) for nodes in plans]
        assert sorted(ended) == sorted(node.id for info in infos for node in info.nodes)
        assert set(ended.values()) == {1}
    check_order(journal, {handle.id: nodes for handle, nodes in zip(handles, plans, strict=True)})
    assert workers.kills > 3


def check_order(journal: Path, plans: dict[str, list[Planned]]) -> None:
    """No node began before those before it had ended."""
    ended = defaultdict[str, set[int]](set)
    for line in journal.read_text().splitlines():
        word, flow, number = line.split()
        node = plans[flow][int(number)]
        if word == "end":
            ended[flow].add(int(number))
            continue
        states = expected(plans[flow])
        ran = {one for one in node.before if states[one] != "cancelled"}
        assert ran <= ended[flow], f"{number} of {flow} began before {ran - ended[flow]} had ended"
