"""The way from one file to three servers, as the guide describes it: with every part of a store, and a server lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from pelton.moving import copy
from tests.docs.pages import ROOT
from tests.kit.nats_server import NatsCluster, nats_cluster
from tests.moving.test_copy import compare, make_shop

TIMEOUT_S = 120


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = [sys.executable, "-m", "pelton", *words]
    return subprocess.run(program, capture_output=True, text=True, env=environ, timeout=TIMEOUT_S)


async def leader_of(cluster: NatsCluster) -> None:
    """Wait until the servers have elected a leader."""
    async with asyncio.timeout(60), pelton.open(cluster.url) as jet:
        await jet.create_stream("first", num_replicas=3)
        await jet.delete_stream("first")


async def make_garage_of_keys(address: str) -> None:
    async with pelton.open(address) as jet:
        queue = await jet.queue("painting", exclusive=True)
        for number in range(10):
            await queue.options(key=f"car{number % 3}").enqueue("paint", number=number)


async def test_everything_is_kept_on_three_servers(tmp_path: Path) -> None:
    source = str(tmp_path / "shop.pelton")
    await make_shop(source)
    await make_garage_of_keys(source)
    with nats_cluster(tmp_path / "servers") as cluster:
        await leader_of(cluster)
        done = await asyncio.to_thread(command, "copy", source, cluster.url, "--replicas", "3", "--json")
        assert done.returncode == 0, done.stderr
        copied = {stream["name"]: stream for stream in json.loads(done.stdout)["streams"]}
        assert copied["orders"]["consumers"] == ["packer"]
        async with asyncio.timeout(TIMEOUT_S), pelton.open(cluster.url) as jet:
            for name in await jet.stream_names():
                assert (await jet.stream(name)).config.num_replicas == 3, name
        # Again: everything is there, and nothing is done.
        again = await asyncio.to_thread(command, "copy", source, cluster.url, "--replicas", "3", "--json")
        assert again.returncode == 0, again.stderr
        was_there = {stream["name"] for stream in json.loads(again.stdout)["streams"] if stream["was_there"]}
        assert was_there >= {"orders", "KV_colours", "OBJ_files", "JOBS_garage"}
        cluster.servers[1].kill()
        async with asyncio.timeout(TIMEOUT_S):
            await look_at_the_copy(cluster.url)


async def look_at_the_copy(address: str) -> None:
    async with pelton.open(address) as jet:
        packer = await (await jet.stream("orders")).consumer("packer")
        # What was acknowledged is not delivered again, what was not, is.
        wanted = {5, 6, *(number for number in range(8, 30) if number not in (10, 11, 19))}
        numbers = list[int]()
        while len(numbers) < len(wanted):
            # The consumer may still be electing another leader.
            left = await packer.fetch(100, timeout=5)
            numbers += [int(message.data) for message in left if message.data.isdigit()]
        assert sorted(numbers) == sorted(wanted)
        assert (await (await jet.bucket("colours")).get("door")).value == b"black"
        assert await (await jet.objects("files")).get("plan") == bytes(range(256)) * 1000
        garage = await jet.queue("garage", create=False)
        done: list[str] = []

        @garage.job
        async def repair(car: str) -> None:
            done.append(car)

        await garage.work(until_empty=True, handle_signals=False)
        assert done[:2] == ["b", "c"]
        painting = await jet.queue("painting", create=False)
        painted: list[int] = []

        @painting.job
        async def paint(number: int) -> None:
            painted.append(number)

        await painting.work(until_empty=True, handle_signals=False)
        assert sorted(painted) == list(range(10))
        for car in range(3):
            of_car = [number for number in painted if number % 3 == car]
            assert of_car == sorted(of_car)


async def test_replicas_are_for_clusters(tmp_path: Path) -> None:
    source = str(tmp_path / "shop.pelton")
    await make_shop(source)
    with pytest.raises(pelton.ConfigError, match="leave it out"):
        await copy(source, tmp_path / "other.pelton", num_replicas=3)
    with pytest.raises(pelton.ConfigError, match="num_replicas"):
        await copy(source, "nats://127.0.0.1:1", num_replicas=0)
    await copy(source, tmp_path / "other.pelton")
    await compare(source, str(tmp_path / "other.pelton"), exact=True)
