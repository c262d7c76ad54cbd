"""The metrics of a file and of a cluster, as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pelton
from pelton import metrics, observe
from pelton.moving import ContinuousBackup
from tests.metrics.scraping import get
from tests.places import PLACES, address_of

Values = dict[tuple[str, ...], float]


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with address_of(request.param, tmp_path) as found:
        yield found


def values(text: bytes) -> Values:
    """Return every sample by its name and the values of its labels."""
    return {
        (sample.name, *(sample.labels[name] for name in metrics.CATALOGUE[family.name].labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def fill(jet: pelton.Jet) -> None:
    await jet.create_stream("orders", subjects=["orders.>"], max_msgs=100, max_bytes=1_000_000)
    for number in range(5):
        await jet.publish(f"orders.{number}", b"12345")
    worker = await (await jet.stream("orders")).create_consumer(durable_name="worker")
    first, _ = await worker.fetch(2)
    await first.ack()
    garage = await jet.queue("garage")

    @garage.job(max_attempts=1)
    async def repair(car: str) -> None:
        if car == "wreck":
            raise ValueError("nothing left")

    for car in ("a", "wreck"):
        await repair.enqueue(car)
    await garage.limit(concurrency=4)
    await garage.limit(job="repair", per_key=True, concurrency=2, rate=pelton.Rate(1000, burst=1000))
    await garage.work(until_empty=True, handle_signals=False)
    flow = await garage.new_flow()
    flow.options(delay=3600).add(repair, "b")
    await flow.enqueue()
    for name in ("nightly", "weekly"):
        await garage.schedule(name, repair, args=("d",), cron="0 3 * * *")
    await garage.pause_schedule("weekly")
    await repair.enqueue("c")


async def test_streams_consumers_queues_and_elections(address: str, tmp_path: Path) -> None:
    is_file = "://" not in address
    async with pelton.open(address) as jet, pelton.open(address, read_only=is_file) as look:
        await fill(jet)
        if is_file:
            ContinuousBackup(tmp_path / "backup").add(address)
        async with jet.elect("boss", name="Ada"):
            text, kind = await metrics.metrics_text(look, path=address if is_file else "")
        assert kind.startswith("text/plain")
    found = values(text)
    expected = {
        ("jetstream_stream_total_messages", "orders"): 5,
        ("jetstream_stream_last_seq", "orders"): 5,
        ("jetstream_stream_subject_count", "orders"): 5,
        ("jetstream_stream_consumer_count", "orders"): 1,
        ("jetstream_stream_limit_messages", "orders"): 100,
        ("jetstream_stream_limit_bytes", "orders"): 1_000_000,
        ("jetstream_consumer_num_pending", "orders", "worker"): 3,
        ("jetstream_consumer_num_ack_pending", "orders", "worker"): 1,
        ("jetstream_consumer_ack_floor_stream_seq", "orders", "worker"): 1,
        ("pelton_consumer_lag", "orders", "worker"): 4,
        ("pelton_consumer_paused", "orders", "worker"): 0,
        ("pelton_queue_jobs", "garage", "pending"): 1,
        ("pelton_queue_jobs", "garage", "running"): 0,
        ("pelton_queue_history_jobs", "garage", "completed"): 1,
        ("pelton_queue_history_jobs", "garage", "failed"): 1,
        ("pelton_queue_jobs_ended_total", "garage"): 2,
        ("pelton_queue_jobs_dead_total", "garage"): 1,
        ("pelton_queue_dead_letters", "garage"): 1,
        ("pelton_queue_paused", "garage"): 0,
        ("pelton_queue_recent_flows", "garage", "running"): 1,
        ("pelton_queue_recent_flows", "garage", "failed"): 0,
        ("pelton_queue_schedules", "garage", "active"): 1,
        ("pelton_queue_schedules", "garage", "paused"): 1,
        ("pelton_limit_concurrency", "garage", "all"): 4,
        ("pelton_limit_running", "garage", "all"): 0,
        ("pelton_limit_held", "garage", "all"): 0,
        ("pelton_limit_fullest", "garage", "repair, each key"): 0,
        ("pelton_limit_next_start_seconds", "garage", "repair, each key"): 0,
        ("pelton_election_has_leader", "boss"): 1,
        ("pelton_omitted", "stream"): 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("jetstream_stream_limit_bytes", "JOBS_garage") not in found
    assert (
        found["pelton_queue_job_run_seconds", "garage", "1"] >= found["pelton_queue_job_run_seconds", "garage", "0.5"]
    )
    assert 0 <= found["pelton_queue_oldest_job_age_seconds", "garage"] < 60
    assert (found.get(("pelton_store_file_bytes",), 0) > 0) is is_file
    assert (found.get(("pelton_store_disk_free_bytes",), 0) > 0) is is_file
    names = {metric.name + ("_total" if metric.kind == "counter" else "") for metric in metrics.CATALOGUE.values()}
    # Just now, nobody writes.
    names.remove("pelton_store_writer_held_seconds")
    # This is no standby, nor a leaf node, and has none.
    names = {name for name in names if not name.startswith(("pelton_standby_", "pelton_leaf_"))}
    of_files = ("pelton_store_", "pelton_backup_")
    assert {name for name, *_ in found} == {name for name in names if is_file or not name.startswith(of_files)}
    assert 0 <= found.get(("pelton_backup_age_seconds", str(tmp_path / "backup")), 0) < 60


async def test_what_is_paused_and_how_large_workers_are(address: str) -> None:
    async with pelton.open(address) as jet:
        garage = await jet.queue("garage")
        idle = await jet.queue("idle")
        started, end = asyncio.Event(), asyncio.Event()

        @garage.job
        async def repair() -> None:
            started.set()
            await end.wait()

        await repair.enqueue()
        worker = asyncio.create_task(garage.work(handle_signals=False))
        await asyncio.wait_for(started.wait(), 60)
        await idle.pause()
        while not await garage.workers():
            await asyncio.sleep(0.01)
        found = values((await metrics.metrics_text(jet))[0])
        (summary,) = await observe.worker_summaries(jet, "garage")
        end.set()
        garage.stop()
        await worker
    assert (found["pelton_queue_paused", "garage"], found["pelton_queue_paused", "idle"]) == (0, 1)
    assert found["pelton_queue_worker_memory_bytes", "idle"] == 0
    assert found["pelton_queue_worker_memory_bytes", "garage"] == summary.memory > 1 << 20


async def test_consumers_of_queues_locks_and_elections_are_internal(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await fill(jet)
        await (await jet.queue("garage")).options(tenant="acme").enqueue("repair", car="e")
        shown = values((await metrics.metrics_text(jet))[0])
        internal = values((await metrics.metrics_text(jet, internals=True))[0])

    def streams(found: Values) -> set[str]:
        return {name[1] for name in found if name[0] == "jetstream_consumer_num_pending"}

    assert streams(shown) == {"orders"}
    assert {"orders", "JOBS_garage"} <= streams(internal)
    total = ("jetstream_server_total_consumers",)
    assert shown[total] == internal[total] > 3


async def test_labels_are_bounded(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        for number in range(5):
            await jet.create_stream(f"s{number}", subjects=[f"s{number}"])
        found = values((await metrics.metrics_text(jet, limit=2))[0])
    assert [name[1] for name in found if name[0] == "jetstream_stream_last_seq"] == ["s0", "s1"]
    assert found["pelton_omitted", "stream"] == 3
    assert found[("jetstream_server_total_streams",)] == 5


async def test_the_app_answers_wherever_it_is_mounted(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("orders", subjects=["orders"])
        app = metrics.app(jet)
        answer = await get(app, "/anything")
        assert (answer.status, values(answer.body)["jetstream_stream_total_messages", "orders"]) == (200, 0)
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.headers["content-length"] == str(len(answer.body))
        assert (await get(app, "/", method="HEAD")).body == b""
        assert (await get(app, "/", method="POST")).status == 405
        open_metrics = await get(app, "/", accept="application/openmetrics-text; version=1.0.0")
        assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
        assert open_metrics.body.endswith(b"# EOF\n")


async def test_the_app_lives_alone() -> None:
    async with pelton.open("memory:") as jet:
        said = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        answers: list[str] = []

        async def receive() -> dict[str, str]:
            return said.pop(0)

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            answers.append(message["type"])

        await metrics.app(jet)({"type": "lifespan"}, receive, send)
        assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_streams_and_consumers_have_the_names_of_the_exporter_of_nats() -> None:
    """Those of prometheus-nats-exporter for ``/jsz``, without what a single account on one store has not."""
    server = ("total_streams", "total_consumers", "total_messages", "total_message_bytes")
    stream = ("total_messages", "total_bytes", "first_seq", "last_seq", "consumer_count")
    consumer = (
        "delivered_consumer_seq", "delivered_stream_seq", "num_ack_pending", "num_redelivered", "num_waiting",
        "num_pending", "ack_floor_stream_seq", "ack_floor_consumer_seq",
    )  # fmt: skip
    for kind, names in (("server", server), ("stream", stream), ("consumer", consumer)):
        assert {f"jetstream_{kind}_{name}" for name in names} <= set(metrics.CATALOGUE)
