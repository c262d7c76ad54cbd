"""The same on nats-server, where keys are held by records: workers and servers are killed, the history is checked."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.queue import JobHandle
from tests.crash.queue.test_crash import (
    KEYS,
    Play,
    Workers,
    checked,
    effects_of,
    enqueue_some,
    everything_ended,
    log_of,
    opened,
)
from tests.kit.judge.history import JobEvent
from tests.kit.nats_server import nats_cluster, nats_server


@pytest.mark.parametrize("seed", [1])
async def test_killed_workers_leave_a_history_without_contradictions(tmp_path: Path, seed: int) -> None:
    with nats_server(tmp_path / "nats") as server:
        await Play(server.url, str(tmp_path / "log"), crew=3, rounds=8, keys=3, chance=random.Random(seed)).kills()


async def test_paused_workers_are_replaced_and_what_they_then_do_has_no_effect(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        await Play(server.url, str(tmp_path / "log"), crew=3, rounds=3, keys=5, chance=random.Random(3)).pauses(3)


async def test_one_of_three_servers_is_killed_and_every_job_takes_effect_once(tmp_path: Path) -> None:
    log, history, handles = str(tmp_path / "log"), list[JobEvent](), list[JobHandle[Any]]()
    with nats_cluster(tmp_path / "nats") as cluster:
        async with pelton.open(cluster.url, patience=90) as jet:
            job = await opened(jet, log, replicas=3)
            workers = Workers(cluster.url, log, 2)
            try:
                await workers.ready()
                handles += await enqueue_some(job, history, range(4 * KEYS))
                await asyncio.to_thread(cluster.servers[1].kill)
                handles += await enqueue_some(job, history, range(len(handles), len(handles) + 4 * KEYS))
                await everything_ended(handles)
            finally:
                workers.dismiss()
            checked([*history, *log_of(log)], await effects_of(jet), len(handles))
