"""Instructions and pages of one operation, which do not wander as times do: ``python -m benchmarks.studies.writes``.

Needs valgrind. Each operation runs ``LESS`` and ``MORE`` times in programs of their own under callgrind, which counts
the instructions of a process, kernel left out; the difference is what one operation takes, without start and opening.
Pages are those that it adds to the log (``-wal``), counted without valgrind. Pass other checkouts as arguments to
compare; they come first. It takes three minutes a checkout.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pelton
from benchmarks.table import table

LESS, MORE = 100, 500
OPERATIONS = (
    "publish",
    "enqueue",
    "fetch(1), ack",
    "fetch(1), ack, work queue",
    "KV put",
    "transaction: 10 acks, 10 messages, a row",
    "the same after its fetch(10)",
    "the same after its fetch(10), in three calls",
    "no-op jobs, a hundred at once",
    "exclusive no-op jobs, a hundred at once",
)
# Of the last two, each time is a hundred jobs.
_HUNDREDS = {name for name in OPERATIONS if "a hundred" in name}
_FRAME = 4096 + 24
_FOUND = re.compile(r"Collected : (\d+)")


async def _publish(jet: pelton.Jet) -> Callable[[int], Awaitable[Any]]:
    await jet.create_stream("s", subjects=["s.>"])
    return lambda number: jet.publish(f"s.{number % 7}", b"x" * 60)


async def _enqueue(jet: pelton.Jet) -> Callable[[int], Awaitable[Any]]:
    queue = await jet.queue("q")

    @queue.job
    async def repair(car: int) -> None: ...

    return repair.enqueue


async def _filled(jet: pelton.Jet, retention: str) -> pelton.Consumer:
    stream = await jet.create_stream("s", subjects=["s.>"], retention=retention)
    await jet.publish_batch([(f"s.{number % 7}", b"x" * 60) for number in range(12 * MORE)])
    return await stream.create_consumer(durable_name="c", max_ack_pending=-1)


def _fetch(retention: str) -> Callable[[pelton.Jet], Awaitable[Callable[[int], Awaitable[Any]]]]:
    async def prepare(jet: pelton.Jet) -> Callable[[int], Awaitable[Any]]:
        consumer = await _filled(jet, retention)

        async def take(_: int) -> None:
            [message] = await consumer.fetch(1)
            await message.ack()

        return take

    return prepare


async def _put(jet: pelton.Jet) -> Callable[[int], Awaitable[Any]]:
    bucket = await jet.create_bucket("b")
    return lambda number: bucket.put(f"k{number % 100}", b"x" * 60)


def _transaction(
    *, fetched: bool, one_by_one: bool = True
) -> Callable[[pelton.Jet], Awaitable[Callable[[int], Awaitable[Any]]]]:
    async def prepare(jet: pelton.Jet) -> Callable[[int], Awaitable[Any]]:
        consumer = await _filled(jet, "limits")
        await jet.create_stream("out", subjects=["out.>"])
        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE seen(number INTEGER)")
        before = [await consumer.fetch(10) for _ in range(MORE)] if fetched else []

        async def exchange(number: int) -> None:
            messages = before[number] if fetched else await consumer.fetch(10)
            # Callgrind is slow: the usual second is not enough on a busy machine.
            async with jet.transaction(timeout=30) as tx:
                for message in messages if one_by_one else ():
                    await tx.ack(message)
                    await tx.publish("out.a", message.data)
                if not one_by_one:
                    await tx.ack(*messages)
                    await tx.publish_batch([("out.a", message.data) for message in messages])
                await tx.sql("INSERT INTO seen VALUES(?)", (number,))

        return exchange

    return prepare


def _jobs(exclusive: bool) -> Callable[[pelton.Jet], Awaitable[Callable[[int], Awaitable[Any]]]]:
    async def prepare(jet: pelton.Jet) -> Callable[[int], Awaitable[Any]]:
        queue = await jet.queue("q", exclusive=exclusive)

        @queue.job
        async def nothing(number: int) -> None: ...

        async def work(_: int) -> None:
            made = [nothing.options(key=f"k{n}") if exclusive else nothing for n in range(100)]
            await queue.enqueue_many([job.bind(n) for n, job in enumerate(made)])
            await queue.work(until_empty=True, handle_signals=False, concurrency=50)

        return work

    return prepare


PREPARED = dict(
    zip(
        OPERATIONS,
        (
            _publish,
            _enqueue,
            _fetch("limits"),
            _fetch("workqueue"),
            _put,
            _transaction(fetched=False),
            _transaction(fetched=True),
            _transaction(fetched=True, one_by_one=False),
            _jobs(exclusive=False),
            _jobs(exclusive=True),
        ),
        strict=True,
    )
)


async def run(name: str, times: int, directory: str) -> float:
    """Run an operation ``times`` times; return how many pages each adds to the log."""
    path = f"{directory}/a.pelton"
    async with pelton.open(path, sync="off") as jet:
        operation = await PREPARED[name](jet)
        before = os.path.getsize(f"{path}-wal")
        for number in range(times):
            await operation(number)
        return (os.path.getsize(f"{path}-wal") - before) / _FRAME / times


def child(name: str, times: int) -> None:
    """Run an operation in a directory of its own, and print its pages."""
    with tempfile.TemporaryDirectory() as directory:
        print(asyncio.run(run(name, times, directory)))


def _called(source: Path, name: str, times: int, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "benchmarks.studies.writes", "--run", name, str(times)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{name} with {source} failed: {ended.stderr[-800:]}")
    return ended


def _instructions(source: Path, name: str, times: int) -> int:
    valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    told = _called(source, name, times, *valgrind).stderr
    found = _FOUND.search(told)
    if found is None:
        raise SystemExit(f"valgrind counted nothing: {told[-400:]}")
    return int(found[1])


def measured(source: Path, name: str) -> tuple[float, float]:
    """Return the instructions and the pages of one operation (of a job, where a hundred run at once)."""
    less, more = (LESS, MORE) if name not in _HUNDREDS else (5, 15)
    pages = float(_called(source, name, more).stdout)
    instructions = (_instructions(source, name, more) - _instructions(source, name, less)) / (more - less)
    share = 100 if name in _HUNDREDS else 1
    return instructions / share, pages / share


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--run"]:
        child(sys.argv[2], int(sys.argv[3]))
        return
    here = Path(__file__).parents[2]
    checkouts = [*(Path(text).resolve() for text in sys.argv[1:]), here]
    names = ["here" if each == here else each.name for each in checkouts]
    rows = []
    for operation in OPERATIONS:
        figures = [measured(each / "src", operation) for each in checkouts]
        print(operation, figures, file=sys.stderr)
        rows.append((operation, *(f"{count:,.0f}" for count, _ in figures), *(f"{pages:.2f}" for _, pages in figures)))
    heads = [f"instructions, {name}" for name in names] + [f"pages, {name}" for name in names]
    print(table(["operation", *heads], rows))


if __name__ == "__main__":
    main()
