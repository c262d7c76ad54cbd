"""What an operator meets, found and mended with the commands alone: see docs/guides/operating/operating.md."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pelton
from pelton.cli.main import main
from pelton.observe import alarms
from tests.cli.conftest import Run
from tests.kit.clocks import runtime_behind
from tests.observe.test_writer import stuck_writer
from tests.storage.stores import raw


@contextmanager
def _working(address: str, concurrency: int = 1) -> Iterator[None]:
    """A worker of queue garage, in a thread; the job ``hang`` waits for ever, ``freeze`` on a thread of its own."""
    thawed = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, pelton.Queue]] = []
    ready = threading.Event()

    async def work() -> None:
        async with pelton.open(address) as jet:
            garage = await jet.queue("garage", exclusive=True)

            @garage.job(max_attempts=1)
            async def hang(car: str) -> None:
                await asyncio.Event().wait()

            @garage.job(max_attempts=1)
            def freeze(car: str) -> None:
                thawed.wait()

            @garage.job(max_attempts=1)
            async def repair(car: str) -> str:
                if car == "poison":
                    raise ValueError("cannot be repaired")
                return car

            running.append((asyncio.get_running_loop(), garage))
            ready.set()
            await garage.work(concurrency=concurrency, handle_signals=False, grace=1)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    ready.wait(20)
    try:
        yield
    finally:
        thawed.set()
        loop, garage = running[0]
        loop.call_soon_threadsafe(garage.stop)
        thread.join(30)


def _enqueue(address: str, job: str, car: str) -> str:
    with pelton.sync.open(address) as jet:
        return jet.queue("garage", exclusive=True).options(key=car).enqueue(job, car=car).id


def _begun(run: Run, job_id: str) -> None:
    for _ in range(500):
        if run("jobs", "show", "garage", job_id, "--json").json["state"] == "running":
            return
    raise AssertionError("it was not begun")


def test_a_job_that_hangs_is_found_and_cancelled(run: Run, address: str) -> None:
    hanging, waiting = _enqueue(address, "hang", "a"), _enqueue(address, "repair", "b")
    with _working(address):
        _begun(run, hanging)
        (worker,) = run("workers", "garage", "--json").json
        assert (worker["failed"], worker["seen_at"] > "") == (0, True)
        (job,) = run("jobs", "ls", "garage", "--state", "running", "--json").json
        assert (job["id"], job["job"]) == (hanging, "hang")
        run("jobs", "cancel", "garage", hanging, "--reason", "it hangs")
        assert "cancelled" in run("jobs", "wait", "garage", hanging, "--timeout", "30s", status=1).out
        run("jobs", "wait", "garage", waiting, "--timeout", "30s")


def test_a_queue_is_drained_for_a_deployment(run: Run, address: str) -> None:
    hanging = _enqueue(address, "hang", "a")
    with _working(address):
        _begun(run, hanging)
        assert "workers still have" in run("queue", "drain", "garage", "--timeout", "10ms", status=1).err
        assert run("queue", "info", "garage", "--json").json["paused"]
        assert "! queue garage: It is paused" in run("info").out
        assert ("paused", "garage") in {(one["kind"], one["queue"]) for one in run("info", "--json").json["alarms"]}
        run("jobs", "cancel", "garage", hanging)
        assert run("queue", "drain", "garage", "--timeout", "40s", "--json").json["running"] == 0
        run("queue", "resume", "garage")
        run("jobs", "wait", "garage", _enqueue(address, "repair", "b"), "--timeout", "30s")


def test_a_poison_job_is_found_mended_and_tried_again(run: Run, address: str) -> None:
    poison = _enqueue(address, "repair", "poison")
    with _working(address):
        run("jobs", "wait", "garage", poison, "--timeout", "30s", status=1)
        assert run("queue", "info", "garage").facts["dead letters"] == "1"
        shown = run("dead", "show", "garage", poison).out
        assert "cannot be repaired" in shown
        assert '"car":"poison"' in shown
        again = run("jobs", "retry", "garage", poison, "--args", '{"car": "whole"}', "--json").json["redriven"][poison]
        run("jobs", "wait", "garage", again, "--timeout", "30s")
    assert run("dead", "ls", "garage").lines == ["no dead letters"]


def test_a_consumer_that_lags_is_found_and_goes_on(run: Run, address: str) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    run("consumer", "add", "orders", "packer")
    run("consumer", "pause", "orders", "packer", "1h")
    run("pub", "orders.1", "a spade", "--count", 20)
    (packer,) = run("consumer", "ls", "--json").json
    assert (packer["lag"], packer["paused"]) == (20, True)
    run("consumer", "resume", "orders", "packer")
    run("consumer", "next", "orders", "packer", "--count", 20)
    (packer,) = run("consumer", "ls", "--json").json
    assert (packer["lag"], packer["pending"]) == (0, 0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("address", ["file"], indirect=True)
def test_a_full_disk_is_found_and_gets_room(run: Run, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PELTON_STORE")
    store, old = disk / "shop.pelton", disk / "old-backup.pelton"
    run("stream", "add", store, "orders", "--subjects", "orders.>", "--create")
    old.write_bytes(bytes(1_500_000))
    stored = 0
    while main(["pub", str(store), "orders.1", secrets.token_hex(50_000)]) == 0:
        stored += 1
        assert stored < 60
    assert "full" in run("pub", store, "orders.1", secrets.token_hex(50_000), status=1).err
    # Reading needs no room, and nothing that was acknowledged is gone.
    assert run("stream", "ls", store, "--json").json[0]["messages"] == stored
    old.unlink()
    run("stream", "purge", store, "orders", "--keep", "1", "-f")
    run("pub", store, "orders.1", "small")
    run("compact", store)
    assert run("info", store, "--json").json["file_bytes"] < 400_000
    run("verify", store)
    assert run("stream", "info", store, "orders", "--json").json["state"]["messages"] == 2


@pytest.mark.parametrize("address", ["file"], indirect=True)
def test_a_night(run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven things go wrong in one store; each is an alarm of ``pelton info``, and is mended by commands."""
    # An hour is a moment here, but for what is new within one.
    for name in ("OVERDUE_S", "WRITER_S"):
        monkeypatch.setattr(alarms, name, 0.05)
    monkeypatch.setattr("pelton.queue.run.worker._EVERY_S", 0.05)

    def wrong() -> set[str]:
        return {alarm["kind"] for alarm in run("info", "--json").json["alarms"]} - {"disk"}

    def is_told(kind: str) -> bool:
        return any(kind in wrong() for _ in range(200))

    run("stream", "add", "orders", "--subjects", "orders.>,s.>", "--create")
    run("pub", "orders.1", "a spade", "--count", 10)
    assert wrong() == set()
    with raw(Path(address)) as connection:
        connection.execute("UPDATE m_1 SET data=x'00' WHERE seq=7")
    assert "7" in run("stream", "get", "orders", "7", status=1).err
    assert "message 7" in run("verify", address, status=1).out
    with _working(address, concurrency=3):
        hanging, frozen = _enqueue(address, "hang", "a"), _enqueue(address, "freeze", "b")
        poison = _enqueue(address, "repair", "poison")
        run("jobs", "wait", "garage", poison, "--timeout", "30s", status=1)
        assert "dead letters" in wrong()
        assert is_told("hangs")
        shown = {job["id"]: job["job"] for job in run("jobs", "ls", "garage", "--state", "running", "--json").json}
        assert shown == {hanging: "hang", frozen: "freeze"}
        told = run("jobs", "cancel", "garage", hanging, frozen, "--reason", "they hang").lines
        assert told[1] == f"job {frozen}: runs, and is told to end"
        run("jobs", "wait", "garage", hanging, "--timeout", "30s", status=1)
        run("queue", "pause", "garage")
        assert "paused" in wrong()
        run("queue", "resume", "garage")
    assert run("jobs", "show", "garage", frozen, "--json").json["state"] in ("cancelled", "completed")
    run("dead", "rm", "garage", poison, "--force")
    with pelton.sync.open(address, runtime=runtime_behind(-86_400)) as tomorrow:
        tomorrow.publish("orders.2", b"of tomorrow")
    assert "clock" in wrong()
    run("stream", "rmm", "orders", 11, "--force")
    run("pub", "orders.2", "of today")
    assert "clock" not in wrong()
    with stuck_writer(Path(address)) as pid:
        assert is_told("writer")
        assert str(pid) in run("info").out
    run("salvage", address, tmp_path / "sound.pelton")
    monkeypatch.setenv("PELTON_STORE", str(tmp_path / "sound.pelton"))
    assert wrong() == set()
    run("verify", tmp_path / "sound.pelton")
