"""A driver that replays is killed in a step, and between steps: it continues, each message once, in order."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pelton
from pelton.api import Outgoing
from pelton.spark import pipelines
from pelton.spark.pipelines import stream_replay
from tests.kit.nats_server import NatsCluster
from tests.spark.driver import kill, killing, wait_until
from tests.spark.pipelines.replay_role import RATE, renamed
from tests.spark.pipelines.test_lake_archive import fill
from tests.spark.pipelines.test_stream_replay import read, stored
from tests.spark.write.test_write_crash import count_staged

ROLE = "tests.spark.pipelines.replay_role"


async def kill_between_steps(home: Path, store: Path, done: int) -> None:
    """Kill the driver when it has written that many rows."""

    def run() -> None:
        with killing(ROLE, home, "path", store, done) as driver:
            wait_until((home / "at").exists, driver)

    await asyncio.to_thread(run)
    (home / "at").unlink()


async def kill_in_a_step(home: Path, store: Path, done: int) -> None:
    """Kill the driver when the tasks of the step after that many rows have written theirs, before the transaction."""

    def reach(condition: Path) -> None:
        wait_until(condition.exists, driver)

    with killing(ROLE, home, "path", store, done) as driver:
        await asyncio.to_thread(reach, home / "at")
        async with pelton.open(store) as jet:
            # While this is open the driver's transaction waits.
            transaction = jet.backend.transaction(600.0)
            await transaction.enter()
            await transaction.publish([Outgoing("again.held", b"")])
            (home / "go").touch()
            await asyncio.to_thread(wait_until, lambda: count_staged(Path(f"{store}-spark")) >= RATE, driver)
            await asyncio.to_thread(kill, driver)
            await transaction.leave(0, keep=False)
    for name in ("at", "go"):
        (home / name).unlink()


async def test_a_replay_goes_on_wherever_its_driver_was_killed(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--kills`` sets how often it is killed: one fortieth of that."""
    monkeypatch.setattr(stream_replay, "pause", lambda seconds: None)
    store, kills = tmp_path / "s.pelton", max(int(request.config.getoption("--kills")) // 40, 1)
    steps = kills + 2
    await asyncio.to_thread(prepare, spark, tmp_path, store, steps * RATE)
    for round in range(kills):
        kill_there = kill_between_steps if round % 2 else kill_in_a_step
        await kill_there(tmp_path, store, (round + 1) * RATE)
        done = len(await asyncio.to_thread(stored, store, "again"))
        # A transaction that outlives its driver may still be committed.
        assert done in ((round + 1) * RATE, (round + 2) * RATE)
    told = await asyncio.to_thread(finish, spark, tmp_path, store)
    assert (told.before >= kills * RATE, told.rows + told.before) == (True, steps * RATE)
    orders = await asyncio.to_thread(stored, store, "orders")
    wanted = [(subject.replace("orders", "again"), data, n) for subject, data, n in orders]
    assert await asyncio.to_thread(stored, store, "again") == wanted
    assert await asyncio.to_thread(finish, spark, tmp_path, store) == (0, steps * RATE)
    assert not Path(f"{store}-spark").exists()


async def test_a_replay_to_three_servers_goes_on_though_its_driver_was_killed_in_a_step(
    spark: SparkSession, three_servers: NatsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_replay, "pause", lambda seconds: None)
    url, count = three_servers.url, 3 * RATE
    await asyncio.to_thread(prepare, spark, tmp_path, tmp_path / "s.pelton", count)

    def play() -> None:
        with pelton.sync.open(url) as jet:
            again = jet.create_stream("again", subjects=["again.>"], num_replicas=3)
            (tmp_path / "go").touch()
            with killing(ROLE, tmp_path, "servers", url, RATE) as driver:
                # Somewhere in the second step, or just behind it.
                wait_until(lambda: again.info().state.messages > RATE, driver)
        rows = pipelines.read_archive(spark, str(tmp_path / "lake"))
        told = pipelines.replay(rows, "again", write_id="r", rate=RATE, transform=renamed, servers=url)
        assert sum(told) == count

    await asyncio.to_thread(play)
    orders = await asyncio.to_thread(stored, tmp_path / "s.pelton", "orders")
    wanted = [(subject.replace("orders", "again"), data, n) for subject, data, n in orders]
    assert await asyncio.to_thread(stored, url, "again") == wanted


def prepare(spark: SparkSession, home: Path, store: Path, count: int) -> None:
    """Archive messages, and make a stream for them."""
    fill(store, "orders", count)
    with pelton.sync.open(store) as jet:
        jet.create_stream("again", subjects=["again.>"])
    pipelines.append(read(spark, store), str(home / "lake"))


def finish(spark: SparkSession, home: Path, store: Path) -> pipelines.Replayed:
    """Replay what is left, at full speed."""
    rows = pipelines.read_archive(spark, str(home / "lake"))
    return pipelines.replay(rows, "again", write_id="r", rate=RATE, transform=renamed, path=str(store))
