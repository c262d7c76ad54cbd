"""A real Celery application, on a file and on three servers.

A worker with two processes, a beat, and what happens when they are killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.exceptions import TimeoutError as ResultTimeoutError

import pelton
from pelton.contrib.process_store import ProcessStore, address_of, close_process_stores, process_store
from tests.contrib.entries import ROOT, write_entry_points
from tests.kit.nats_server import NatsServer, nats_cluster

SHOP = """
import os, time
from celery import Celery

app = Celery("celery_shop")
app.conf.update(
    broker_url=os.environ["SHOP_URL"].removeprefix("pelton+"),
    broker_transport="pelton.contrib.kombu:Transport",
    result_backend=os.environ["SHOP_URL"],
    broker_transport_options={"lease": 1, "num_replicas": int(os.environ["SHOP_REPLICAS"])},
    result_backend_transport_options={"num_replicas": int(os.environ["SHOP_REPLICAS"])},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    beat_schedule={"tick": {"task": "celery_shop.note", "schedule": 0.2, "args": ("tick",)}},
)

@app.task
def note(word):
    with open("notes", "a") as notes:
        print(word, os.getppid(), os.getpid(), file=notes)
    return word

@app.task
def add(a, b):
    return a + b

@app.task
def total(numbers):
    note("total")
    return sum(numbers)

@app.task(bind=True, max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries

@app.task
def fail():
    raise ValueError("no")

@app.task
def hold(number):
    note(f"hold-{number}")
    while not os.path.exists("go"):
        time.sleep(0.02)
    return number
"""


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[tuple[str, int, list[NatsServer]]]:
    """Yield an address, how many replicas there can be, and the servers."""
    if kind == "file":
        yield "pelton://shop.pelton", 1, []
        return
    with nats_cluster(folder / "servers") as cluster:

        async def opened() -> None:
            async with asyncio.timeout(60), pelton.open(cluster.url) as jet:
                await jet.create_stream("first", num_replicas=3)

        asyncio.run(opened())
        yield f"pelton+{cluster.url}", 3, cluster.servers


@pytest.fixture(params=["file", "cluster"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int, list[NatsServer]]]:
    with place_of(request.param, tmp_path) as found:
        yield found
        close_process_stores()


@pytest.fixture
def shop(place: tuple[str, int, list[NatsServer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SHOP_URL", place[0])
    monkeypatch.setenv("SHOP_REPLICAS", str(place[1]))
    (tmp_path / "celery_shop.py").write_text(SHOP)
    write_entry_points(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.delitem(sys.modules, "celery_shop", raising=False)
    import celery_shop

    yield celery_shop
    celery_shop.app.close()
    sys.modules.pop("celery_shop")


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "-A", "celery_shop", *arguments, "-l", "WARNING"]
    with Path("log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    except BaseException:
        print(Path("log").read_text()[-8000:])
        raise
    finally:
        # Its children, too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def worker(*arguments: str) -> Any:
    return running("worker", "-c", "2", *arguments)


def notes(word: str) -> list[list[int]]:
    """Return which processes have noted a word: the worker's first, and its child."""
    path = Path("notes")
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [[int(pid) for pid in line[1:]] for line in lines if line[0] == word]


def until(true: Callable[[], Any], patience: float = 30) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def counts() -> pelton.JobCounts:
    return store().blocking.queue("celery").counts()


def store() -> ProcessStore:
    return process_store(address_of(os.environ["SHOP_URL"]))


def test_an_application_runs(shop: Any) -> None:
    with worker() as process:
        assert shop.add.delay(1, 2).get(timeout=30) == 3
        assert group(shop.add.s(n, n) for n in range(5))().get(timeout=30) == [0, 2, 4, 6, 8]
        assert chain(shop.add.s(1, 1), shop.add.s(10))().get(timeout=30) == 12
        assert chord([shop.add.s(n, n) for n in range(5)])(shop.total.s()).get(timeout=30) == 20
        assert len(notes("total")) == 1
        assert shop.flaky.delay().get(timeout=30) == 2
        with pytest.raises(ValueError, match="no"):
            shop.fail.delay().get(timeout=30)
        body = chord([shop.add.s(1, 1), shop.fail.s()])(shop.total.s())
        with pytest.raises(ChordError):
            shop.app.AsyncResult(body.id).get(timeout=30)
        sent = time.monotonic()
        assert shop.add.apply_async((1, 1), countdown=0.5).get(timeout=30) == 2
        assert time.monotonic() - sent > 0.4
        expired = shop.add.apply_async((1, 1), expires=-1)
        with pytest.raises(TaskRevokedError):
            expired.get(timeout=30)
        inspected = shop.app.control.inspect(timeout=5, limit=1)
        (name,) = inspected.ping()
        assert inspected.active_queues()[name][0]["name"] == "celery"
        late = shop.add.apply_async((1, 1), countdown=5)
        until(lambda: inspected.scheduled()[name])
        shop.app.control.revoke(late.id, reply=True, timeout=5, limit=1)
        with pytest.raises(TaskRevokedError):
            late.get(timeout=30)
        until(lambda: counts().unfinished == 0)
        assert counts().failed == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_results_expire_and_are_forgotten(shop: Any) -> None:
    with worker():
        result = shop.add.delay(1, 2)
        assert result.get(timeout=30) == 3
        assert shop.app.AsyncResult(result.id).state == "SUCCESS"
        result.forget()
        assert shop.app.AsyncResult(result.id).state == "PENDING"
        with pytest.raises(ResultTimeoutError):
            shop.app.AsyncResult("unknown").get(timeout=0.05)
        kept = shop.add.delay(2, 2)
        kept.get(timeout=30)
        stored = (
            store()
            .blocking.stream("KV_celery_results")
            .get_last_message(f"$KV.celery_results.celery-task-meta-{kept.id}")
        )
        assert stored.headers["Nats-TTL"] == "24h0m0s"


def test_tasks_of_killed_processes_are_run_again_and_nothing_is_lost(shop: Any) -> None:
    with worker() as first, worker("-n", "second@%h"):
        until(lambda: len(shop.app.control.ping(timeout=2, limit=2)) == 2)
        held = [shop.hold.delay(number) for number in range(6)]
        until(lambda: sum(len(notes(f"hold-{number}")) for number in range(6)) == 4)
        # One of the second worker's processes, and all of the first worker.
        begun = [(number, parent, pid) for number in range(6) for parent, pid in notes(f"hold-{number}")]
        others = [(number, pid) for number, parent, pid in begun if parent != first.pid]
        lost = {others[0][0], *(number for number, parent, _ in begun if parent == first.pid)}
        os.kill(others[0][1], signal.SIGKILL)
        os.killpg(first.pid, signal.SIGKILL)
        Path("go").touch()
        assert [result.get(timeout=60) for result in held] == list(range(6))
        assert len(lost) == 3
        # Others may have run again as well: a machine that is busy for longer than their leases loses these, too.
        assert all(len(notes(f"hold-{number}")) > (number in lost) for number in range(6))
        until(lambda: counts().unfinished == 0)


def test_a_chord_whose_part_is_killed_runs_its_body_once(shop: Any) -> None:
    with worker():
        parts = [shop.add.s(1, 1), shop.hold.s(5), shop.add.s(2, 2)]
        body = chord(parts)(shop.total.s())
        until(lambda: notes("hold-5"))
        os.kill(notes("hold-5")[0][1], signal.SIGKILL)
        Path("go").touch()
        assert body.get(timeout=60) == 11
        until(lambda: counts().unfinished == 0)
        assert len(notes("total")) == 1


def test_beat_sends_what_is_due(shop: Any) -> None:
    with worker(), running("beat"):
        until(lambda: len(notes("tick")) >= 3)


def test_events_arrive(shop: Any) -> None:
    seen: list[str] = []

    def note(event: dict[str, Any]) -> None:
        seen.append(event["type"])
        if event["type"] == "worker-heartbeat":
            shop.add.delay(1, 1)
        receiver.should_stop = event["type"] == "task-succeeded"

    with worker("-E"), shop.app.connection() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"*": note})
        receiver.capture(limit=None, timeout=30, wakeup=False)
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)


@pytest.mark.parametrize("place", ["cluster"], indirect=True)
def test_a_server_that_is_lost_loses_no_task(shop: Any, place: tuple[str, int, list[NatsServer]]) -> None:
    sums = [shop.add.delay(number, 1) for number in range(20)]
    with worker():
        held = shop.hold.delay(7)
        until(lambda: notes("hold-7"))
        place[2][0].kill()
        sums += [shop.add.delay(number, 1) for number in range(20, 40)]
        Path("go").touch()
        assert [result.get(timeout=60) for result in sums] == list(range(1, 41))
        assert held.get(timeout=60) == 7
        until(lambda: counts().unfinished == 0, patience=60)
        assert counts().failed == 0


def test_a_cluster_is_named_by_its_url() -> None:
    app = Celery(broker="pelton+nats://ada:secret@host:4222", backend="pelton+nats://ada:secret@host:4222")
    pytest.importorskip("pelton.contrib.celery")
    assert "secret" not in app.connection_for_write().as_uri()
