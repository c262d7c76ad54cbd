"""Each alert rule fires on the metrics of a store that is in the state it is about; none fires on a sound one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import pelton
from pelton import metrics
from pelton.moving import ContinuousBackup
from pelton.observe import samples
from pelton.storage import WriterHold, committer
from tests.examples.test_prometheus import ALERTS, rules
from tests.queue.helpers import drain
from tests.storage.stores import raw

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
Scrape = dict[str, float]
_STEPS = 60


async def scraped(jet: pelton.Jet, path: str, later: float = 0.0) -> Scrape:
    """Return the metrics as Prometheus stores them, as they are ``later`` (seconds)."""
    clock = jet.runtime.clock
    shifted: Any = SimpleNamespace(
        now=lambda: clock.now() + int(later * 1e9), monotonic=clock.monotonic, boottime=clock.boottime
    )
    look = pelton.Jet(jet.backend, msgspec.structs.replace(jet.runtime, clock=shifted))
    text, _ = await metrics.metrics_text(look, path=path)
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ", ".join(f'{name}="{value}"' for name, value in {"instance": "a", **sample.labels}.items())
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def firing(folder: Path, before: Scrape, after: Scrape) -> set[str]:
    """Return the alerts that fire after an hour in which every metric went from one value to the other."""
    series = []
    for name, value in after.items():
        first = before.get(name, value)
        series.append({"series": name, "values": f"{first:.6f}{(value - first) / _STEPS:+.6f}x{_STEPS}"})
    # It expects nothing, and so tells of all there is.
    asked = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "58m", "exp_samples": []}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "exp:" in said, said
    return {rule["alert"] for rule in rules() if f'alertname="{rule["alert"]}"' in said}


async def test_a_sound_store_fires_none(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.pelton")
    async with pelton.open(path) as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"], max_msgs=100)
        await orders.create_consumer(durable_name="shipping")
        await jet.publish("orders.1", b"")
        queue = await jet.queue("garage")

        @queue.job
        async def repair(car: str) -> str:
            return car

        async with jet.elect("boss"):
            before = await scraped(jet, path)
            await repair.enqueue("a")
            await drain(queue)
            after = await scraped(jet, path)
    assert len(after) > 50
    assert firing(tmp_path, before, after) == set()


async def test_each_rule_fires_on_a_store_in_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "shop.pelton")
    monkeypatch.setattr("pelton.queue.run.worker._EVERY_S", 0.05)
    monkeypatch.setattr("pelton.queue.run.worker.memory_bytes", lambda: 3_000_000_000)
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"], max_msgs=3)
        await (await jet.stream("s")).create_consumer(durable_name="reader")
        await jet.publish_batch([("s.a", b"1"), ("s.a", b"2"), ("s.a", b"3")])
    ContinuousBackup(str(tmp_path / "points")).add(path)
    with raw(Path(path)) as connection:
        connection.execute("UPDATE m_1 SET data=x'00' WHERE seq=2")
    async with pelton.open(path) as jet:
        # Nothing reads what is published, nobody works for one queue, and a worker of the other hangs.
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await orders.create_consumer(durable_name="slow")
        await jet.publish_batch([("orders.1", b"")] * 2000)
        await (await jet.queue("idle")).enqueue("repair", car="a")
        queue = await jet.queue("garage")
        started, end = asyncio.Event(), asyncio.Event()

        @queue.job
        async def hang() -> None:
            started.set()
            await end.wait()

        @queue.job(max_attempts=1)
        async def fail() -> None:
            raise ValueError("a poison job")

        async with jet.elect("boss"):
            pass
        await fail.enqueue()
        await drain(queue)
        await hang.enqueue()
        worker = asyncio.create_task(queue.work(concurrency=1, handle_signals=False))
        await asyncio.wait_for(started.wait(), 60)
        while not [info for info in await queue.workers() if info.running]:
            # It tells of itself again and again.
            await asyncio.sleep(0.01)
        healthy = await scraped(jet, path)

        await jet.publish_batch([("orders.1", b"")] * 2000)
        await (await (await jet.stream("s")).consumer("reader")).fetch(3)
        monkeypatch.setattr(committer, "SLOW_SYNC_S", 0.0)
        await jet.publish("s.a", b"4")
        size = os.path.getsize
        monkeypatch.setattr(samples.os.path, "getsize", lambda file: 2_000_000_000 if "-wal" in file else size(file))
        monkeypatch.setattr(samples.os, "statvfs", lambda _: SimpleNamespace(f_bavail=1000, f_frsize=4096))
        monkeypatch.setattr(samples, "writer_hold", lambda path, now: WriterHold(77, 60.0))
        await (await jet.queue("idle")).pause()
        broken = await scraped(jet, path, later=7300)
        end.set()
        queue.stop()
        await worker
    for name in healthy:
        if "jobs_dead_total" in name or "slow_syncs_total" in name:
            # What has happened before the first scrape has happened since.
            healthy[name] = 0
        elif "disk_free" in name or "paused" in name:
            # The disk is full for the whole hour, and the queue is paused.
            healthy[name] = broken[name]
    assert firing(tmp_path, healthy, broken) == {rule["alert"] for rule in rules()}
