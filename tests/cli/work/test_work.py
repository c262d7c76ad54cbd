"""``pelton work``, as processes: alone and under a supervisor, with signals, deaths and new code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.cli.main import main
from pelton.cli.work_command import SourceFiles
from pelton.queue import JobHandle, Queue
from tests.cli.work.programs import Working, folder, is_alive, shop_queue, working, write_shop

__all__ = ["folder"]


@pytest.fixture
async def jet(folder: Path) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(folder / "shop.pelton", sync="off") as jet:
        yield jet


@pytest.fixture
async def shop(jet: pelton.Jet) -> Queue:
    return await shop_queue(jet)


# --- one process


async def test_it_runs_the_jobs_of_a_module_and_ends_in_order(folder: Path, shop: Queue) -> None:
    sold = await shop.enqueue("sell", number=1)
    with working(folder) as command:
        assert await sold.value(timeout=60) == "one"
        held = await shop.enqueue("wait")
        await command.noted("wait", 1)
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    assert await held.value(timeout=60) == "one"


LIFESPAN = """
@jobs.lifespan
async def client(jet: pelton.Jet):
    if os.path.exists("refused"):
        raise OSError("no route")
    note("begins", os.getpid())
    yield
    note("ends", os.getpid())
"""


async def test_a_lifespan_surrounds_the_jobs_of_each_process(folder: Path, shop: Queue) -> None:
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + LIFESPAN)
    held = [await shop.enqueue("wait") for _ in range(2)]
    with working(folder, "--processes", "2", "--queue", "other", "--concurrency", "1") as command:
        await command.noted("wait", 2)
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    assert [await each.value(timeout=60) for each in held] == ["one", "one"]
    begun, over = command.notes("begins"), command.notes("ends")
    assert sorted(begun) == sorted(over)
    assert len(begun) == 2
    notes = [line.split()[0] for line in (folder / "notes").read_text().splitlines()]
    assert notes[0] == "begins"
    assert notes[-2:] == ["ends", "ends"] or notes[-1] == "ends"


@pytest.mark.parametrize("supervised", [False, True])
async def test_a_lifespan_that_fails_at_its_start_ends_the_command(folder: Path, shop: Queue, supervised: bool) -> None:
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + LIFESPAN)
    (folder / "refused").touch()
    held = await shop.enqueue("sell", number=1)
    with working(folder, *(("--processes", "1") if supervised else ())) as command:
        await command.says("OSError: no route")
        assert await command.ends() == 1
    assert (await held.info()).state == "pending"


async def test_what_is_left_is_handed_back_and_burns_no_attempt(folder: Path, shop: Queue) -> None:
    write_shop(folder, "endless")
    held = await shop.enqueue("wait")
    for _ in range(2):
        with working(folder, "--grace", "0.05") as command:
            await command.noted("wait", 1)
            command.signal(signal.SIGINT)
            assert await command.ends() == 0
        assert [attempt for attempt, _ in command.notes("wait")] == ["1"]
        (folder / "notes").unlink()
    assert (await held.info()).state == "pending"


async def test_a_second_signal_ends_it_at_once(folder: Path, shop: Queue) -> None:
    write_shop(folder, "endless")
    await shop.enqueue("wait")
    with working(folder, "--grace", "600") as command:
        await command.noted("wait", 1)
        while command.process.poll() is None:
            command.signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
        assert command.process.returncode == -signal.SIGTERM


async def test_logs_are_json_if_wanted(folder: Path, shop: Queue) -> None:
    await shop.enqueue("sell")
    with working(folder, "--json-logs") as command:
        await command.says("sell")
        command.signal(signal.SIGTERM)
        await command.ends()
    line = json.loads(command.said[-1])
    assert line["logger"].startswith("pelton")
    assert {"level", "process", "message"} <= line.keys()
    assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta()
    assert line["store"] == "shop.pelton"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere:jobs"], "'nowhere' can't be imported"),
        (["shop:nothing"], "'shop:nothing' is not there"),
        (["shop:something"], "'shop:something' is int: give MODULE:ATTRIBUTE"),
        (["shop.py"], "'shop.py' names no jobs"),
        (["shop:nothing", "--processes", "1"], "'shop:nothing' is not there"),
    ],
)
def test_what_is_no_jobs_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    assert main(["work", *words, "--store", "s.pelton", "--queue", "shop"]) == 1
    assert told in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--processes", "x"], "--processes: 'x' is not a positive number"),
        (["--concurrency", "0"], "--concurrency: '0' is not a positive number"),
        (["--grace", "soon"], "--grace: soon is not a number of seconds"),
    ],
)
def test_what_is_no_number_is_told(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    with pytest.raises(SystemExit):
        main(["work", "shop:jobs", "--store", "s.pelton", "--queue", "shop", *words])
    assert told in capsys.readouterr().err


def test_a_store_is_needed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PELTON_STORE", raising=False)
    assert main(["work", "shop:jobs", "--queue", "shop"]) == 1
    assert "PELTON_STORE" in capsys.readouterr().err


# --- several


async def test_processes_share_the_work_and_end_together(folder: Path, shop: Queue) -> None:
    with working(folder, "--processes", "2") as command:
        held = [await shop.enqueue("wait") for _ in range(12)]
        noted = await command.noted("wait", 12)
        pids = {int(pid) for _, pid in noted}
        assert len(pids) == 2  # 8 at a time each
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    assert not any(map(is_alive, pids))
    assert {await handle.value(timeout=60) for handle in held} == {"one"}


async def test_a_child_that_is_killed_loses_no_job_and_is_replaced(folder: Path, jet: pelton.Jet) -> None:
    write_shop(folder, attempts=3)
    shop = await shop_queue(jet, lease=1.0)
    with working(folder, "--processes", "2") as command:
        handles = [await shop.enqueue("sell", number=number) for number in range(300)]
        noted = await command.noted("sell", 20)
        os.kill(int(noted[-1][2]), signal.SIGKILL)
        await command.says(r"worker \d was killed by SIGKILL; the next one starts in 0.5 s")
        await command.says("has begun")
        assert {await handle.value(timeout=60) for handle in handles} == {"one"}
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    assert (await shop.counts()).failed == 0


async def test_a_supervisor_that_is_killed_leaves_no_child(folder: Path, shop: Queue) -> None:
    with working(folder, "--processes", "1") as command:
        pid = await command.begun(1)
        handle = await shop.enqueue("wait")
        await command.noted("wait", 1)
        command.signal(signal.SIGKILL)
        assert await handle.value(timeout=60) == "one"
        async with asyncio.timeout(60):
            while is_alive(pid):
                await asyncio.sleep(0.02)


async def test_a_second_signal_ends_all_at_once(folder: Path, shop: Queue) -> None:
    write_shop(folder, "endless")
    await shop.enqueue("wait")
    with working(folder, "--processes", "1", "--grace", "600") as command:
        await command.noted("wait", 1)
        command.signal(signal.SIGINT)
        await command.says("SIGINT: the workers finish")
        command.signal(signal.SIGINT)
        assert await command.ends() == 128 + signal.SIGINT


async def test_a_rolling_deploy_brings_new_code_and_burns_no_attempt(folder: Path, shop: Queue) -> None:
    with working(folder, "--processes", "2") as command:
        await command.says("has begun")
        await command.says("has begun")
        held = [await shop.enqueue("wait") for _ in range(12)]
        await command.noted("wait", 12)
        write_shop(folder, "second")
        command.signal(signal.SIGHUP)
        await command.begun(1)
        await command.begun(2)
        # Those that ran were the old code's, and had one attempt only: it was not lost.
        assert [await handle.value(timeout=60) for handle in held] == ["one"] * 12
        handles = [await shop.enqueue("sell", number=n) for n in range(20)]
        assert {await handle.value(timeout=60) for handle in handles} == {"second"}
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    counts = await shop.counts()
    assert (counts.failed, counts.completed) == (0, 32)
    assert {attempt for attempt, _ in command.notes("wait")} == {"1"}


async def test_commands_are_replaced_one_after_the_other_under_load(folder: Path, shop: Queue) -> None:
    """As a service manager deploys: each is told to end by SIGTERM, and the new version is started in its place."""
    handles, is_over = list[JobHandle[Any]](), asyncio.Event()

    async def load() -> None:
        while not is_over.is_set():
            handles.append(await shop.enqueue("sell", number=len(handles)))
            await asyncio.sleep(0.002)

    async def sells(command: Working) -> None:
        async with asyncio.timeout(60):
            while command.process.pid not in {int(pid) for _, _, pid in command.notes("sell")}:
                await asyncio.sleep(0.01)

    with ExitStack() as stack:
        old = [stack.enter_context(working(folder)) for _ in range(2)]
        held = [await shop.enqueue("wait") for _ in range(6)]
        enqueuing = asyncio.create_task(load())
        await old[0].noted("wait", 6)
        for command in old:
            await sells(command)
        write_shop(folder, "second")
        new = []
        for command in old:
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
            new.append(stack.enter_context(working(folder)))
            await sells(new[-1])
        is_over.set()
        await enqueuing
        for command in new:
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
        stack.enter_context(working(folder))
        async with asyncio.timeout(60):
            while (await shop.counts()).unfinished:
                await asyncio.sleep(0.05)
        ended = {outcome.id: outcome.value() async for outcome in shop.history()}
        assert {ended[handle.id] for handle in handles} == {"one", "second"}
        # They ran when their workers were told, and had one attempt only.
        assert {ended[handle.id] for handle in held} == {"one"}
        notes = new[0].notes("sell") + new[0].notes("wait")
    counts = await shop.counts()
    assert (counts.completed, counts.failed) == (len(handles) + len(held), 0)
    assert {note[-2] for note in notes} == {"1"}


async def test_a_deploy_of_broken_code_leaves_the_others_at_work(folder: Path, shop: Queue) -> None:
    with working(folder, "--processes", "2") as command:
        await command.says("has begun")
        await command.says("has begun")
        (folder / "shop.py").write_text("this is no Python, and never was\n")
        command.signal(signal.SIGHUP)
        await command.says("worker 1 could not start; the next one starts in 0.5 s")
        await command.says("worker 1 could not be replaced; the others go on as they are")
        assert await (await shop.enqueue("sell", number=1)).value(timeout=60) == "one"
        write_shop(folder, "mended")
        await command.begun(1)
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0


async def test_a_deploy_of_broken_code_leaves_the_last_one_at_work(folder: Path, shop: Queue) -> None:
    with working(folder, "--processes", "2") as command:
        begun = [await command.says(r"worker (\d) \(pid (\d+)\) has begun") for _ in range(2)]
        first, second = (int(pid) for _, pid in sorted(found.groups() for found in begun))
        (folder / "shop.py").write_text("this is no Python, and never was\n")
        os.kill(second, signal.SIGKILL)
        await command.says("worker 2 could not start; the next one starts in 1 s")
        command.signal(signal.SIGHUP)
        await command.says("worker 2 could not be replaced; the others go on as they are")
        assert is_alive(first)
        assert await (await shop.enqueue("sell", number=1)).value(timeout=60) == "one"
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0


async def test_after_so_many_jobs_a_child_is_replaced(folder: Path, shop: Queue) -> None:
    handles = [await shop.enqueue("sell", number=n) for n in range(25)]
    with working(folder, "--max-jobs", "10", "--concurrency", "1") as command:
        for handle in handles:
            assert await handle.value(timeout=60) == "one"
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    pids = [pid for _, _, pid in command.notes("sell")]
    assert sorted(pids.count(pid) for pid in set(pids)) == [5, 10, 10]
    assert len(pids) == 25


async def test_a_child_that_has_grown_is_replaced(folder: Path, shop: Queue) -> None:
    with working(folder, "--max-memory", "160M", "--concurrency", "2") as command:
        held = await shop.enqueue("wait")
        await command.noted("wait", 1)
        await (await shop.enqueue("grow", megabytes=150)).value(timeout=60)
        await command.says(r"it has \d+ MB of memory, the limit is 160 MB")
        # Its other job may end.
        assert await held.value(timeout=60) == "one"
        await command.begun(1)
        assert await (await shop.enqueue("sell", number=1)).value(timeout=60) == "one"
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    ((grown,),) = command.notes("grow")
    assert [pid for *_, pid in command.notes("sell")] != [grown]


async def test_a_limit_of_memory_that_is_too_low(folder: Path) -> None:
    with working(folder, "--max-memory", "1M") as command:
        await command.says(r"--max-memory: before its first job, a process has \d+ MB")
        assert await command.ends() == 1


async def test_it_starts_again_when_a_file_changes(folder: Path, shop: Queue) -> None:
    with working(folder, "--reload") as command:
        await command.begun(1)
        (folder / "shop.py").write_text("this is no Python, and never was\n")
        await command.says(r"shop.py changed: the workers start again")
        await command.says("could not start")
        write_shop(folder, "mended")
        await command.begun(1)
        assert await (await shop.enqueue("sell", number=1)).value(timeout=60) == "mended"
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0


def test_files_that_count(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", ".git/c.py", "__pycache__/d.py", "venv/pyvenv.cfg", "venv/e.py", "in/f.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    files = SourceFiles(tmp_path)
    assert files.find_changed() == []
    for name in ("b.txt", ".git/c.py", "__pycache__/d.py", "venv/e.py", "in/f.py", "new.py"):
        (tmp_path / name).write_text("1")
    (tmp_path / "a.py").unlink()
    assert files.find_changed() == ["a.py", "in/f.py", "new.py"]
    assert files.find_changed() == []


async def test_a_job_of_the_new_code_waits_for_it_and_burns_no_attempt(folder: Path, shop: Queue) -> None:
    with working(folder, "--processes", "2") as command:
        await command.says("has begun")
        await command.says("has begun")
        fresh = await shop.enqueue("fresh")
        await command.says("fresh")  # the old code tells that it does not know it
        with (folder / "shop.py").open("a") as program:
            program.write("\n@jobs.job(max_attempts=1)\nasync def fresh(context: pelton.JobContext) -> int:\n")
            program.write("    return context.attempt\n")
        command.signal(signal.SIGHUP)
        assert await fresh.value(timeout=60) == 1
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
