"""Measures one writer for all beside writers of their own: ``python -m benchmarks.prototypes.one_writer``.

Each round runs every form of a case once; the table shows medians, and CPU of all processes for each job or message.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from msgspec.structs import replace

import pelton
from benchmarks.prototypes.one_writer.children import WRITERS, Done, Part, measured, noop
from benchmarks.stats import percentile

WORKERS = (1, 2, 3, 6)
LONE = "a publish every 10 ms, beside a process that computes for 50 ms at a time"
PUBLISHERS = {"one process, 1,000 in flight": (1, 1000), "4 processes, 250 in flight each": (4, 250)}

Form = Literal["each", "one", "thread", "apart"]
FORMS: dict[Form, str] = {
    "each": "each writes by itself",
    "one": "one of them writes for all",
    "thread": "one of them, on a thread of its own",
    "apart": "one more process writes for all",
}


class Figures(NamedTuple):
    """One run: how many a second, CPU of all processes for each in us, that of the writer alone, and the least share.

    The least busy process did ``least`` of an equal share.
    """

    rate: float
    cpu: float
    writer: float
    least: float


Measure = Callable[[Path, Form], Awaitable[Figures]]


def parts_of(form: Form, many: int, part: Part) -> list[Part]:
    """Return the parts of a form's processes, the writer's first."""
    if form == "each":
        return [part] * many
    asker = replace(part, role="asker")
    if form == "one":
        return [replace(part, role="writer"), *[asker] * (many - 1)]
    if form == "thread":
        return [replace(part, role="threaded"), *[asker] * (many - 1)]
    return [replace(part, role="writer", verb=""), *[asker] * many]


def figures_of(done: list[Done], parts: list[Part], seconds: float | None) -> Figures:
    """Return the figures of one run; ``seconds`` None: from the first beginning to the last end of a worker."""
    total = sum(each.count for each in done)
    ours = [each for each, part in zip(done, parts, strict=True) if part.verb]
    took = seconds or max(each.ended for each in ours) - min(each.began for each in ours)
    writer = sum(each.cpu for each, part in zip(done, parts, strict=True) if part.role in WRITERS)
    least = min(each.count for each in ours) * len(ours) / total
    return Figures(total / took, sum(each.cpu for each in done) / total * 1e6, writer / total * 1e6, least)


async def drain(jobs: int, keys: int, burn_us: int, many: int, home: Path, form: Form) -> Figures:
    """Jobs of ``burn_us`` of CPU each that were enqueued beforehand; ``keys`` 0: not exclusive."""
    path = home / "jobs.pelton"
    async with pelton.open(path) as jet:
        job = (await jet.queue("bench", exclusive=keys > 0)).job(noop)
        for begin in range(0, jobs, 1000):
            numbers = range(begin, min(begin + 1000, jobs))
            names = [f"key{number % keys}" for number in numbers] if keys else None
            await job.enqueue_many([()] * len(numbers), keys=names)
    parts = parts_of(form, many, Part(str(path), "alone", "work", burn_us=burn_us))
    done = await measured(parts)
    assert sum(each.count for each in done) == jobs, f"{done} of {jobs}"
    return figures_of(done, parts, None)


async def publish(seconds: float, many: int, each: int, home: Path, form: Form) -> Figures:
    """Publishes, ``each`` in flight in every process."""
    path = home / "stream.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
    parts = parts_of(form, many, Part(str(path), "alone", "publish", each, seconds))
    return figures_of(await measured(parts), parts, seconds)


async def lone(seconds: float, home: Path, form: Form) -> tuple[float, float]:
    """The median and the 99th percentile of a publish, in ms, beside a process that computes.

    Where one process writes for all, it is the one that computes, or in the form "apart" a third one.
    """
    path = home / "stream.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
    part = Part(str(path), "alone", "compute", 0, seconds)
    *others, last = parts_of(form, 2, part)
    done = await measured([*others, replace(last, verb="wait")])
    waits = [each * 1e3 for each in done[-1].waits]
    return percentile(waits, 0.5), percentile(waits, 0.99)


def cases(jobs: int, seconds: float) -> dict[str, Measure]:
    """Return what is measured, by name."""
    found: dict[str, Measure] = {}
    for name, keys, burn_us in (
        ("plain", 0, 0),
        ("exclusive, 4,000 keys", 4_000, 0),
        ("jobs of 100 us of CPU", 0, 100),
    ):
        for many in WORKERS:
            found[f"{name}, W={many}"] = partial(drain, jobs // 4 if burn_us else jobs, keys, burn_us, many)
    for name, (many, each) in PUBLISHERS.items():
        found[name] = partial(publish, seconds, many, each)
    return found


def shown(name: str, runs: Mapping[Form, list[Figures]]) -> str:
    """Return the rows of a case."""
    own = median(run.cpu for run in runs["each"])
    rows = []
    for form, found in runs.items():
        rate, cpu, writer, least = (median(column) for column in zip(*found, strict=True))
        columns = f"{rate / 1000:.1f} k/s | {cpu:.1f} | {writer:.1f} | {own / cpu:.2f}x | {least:.2f}"
        rows.append(f"| {name} | {FORMS[form]} | {columns} |")
    return "\n".join(rows)


async def main() -> None:
    """Measure, and print the table."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.prototypes.one_writer")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--jobs", type=int, default=49_152)
    asked.add_argument("--seconds", type=float, default=3.0)
    asked.add_argument("--only", default="", help="the cases whose names have this text")
    chosen = asked.parse_args()
    await throughput(chosen.only, chosen.rounds, cases(chosen.jobs, chosen.seconds))
    await waiting(chosen.only, chosen.rounds, chosen.seconds)


def in_turn(rounds: int) -> Iterator[Form]:
    """Return the forms, so often; each is the first now and then."""
    for turn in range(rounds):
        begin = turn % len(FORMS)
        yield from [*FORMS][begin:] + [*FORMS][:begin]


async def throughput(only: str, rounds: int, measures: Mapping[str, Measure]) -> None:
    """Print how many jobs and messages are possible, and what they cost."""
    print("| case | form | rate | CPU us each | of it the writer | CPU of each by itself, beside this | least share |")
    print("|---" * 7 + "|")
    for name, measure in measures.items():
        if only not in name:
            continue
        runs: dict[Form, list[Figures]] = {form: [] for form in FORMS}
        loads = []
        for form in in_turn(rounds):
            with tempfile.TemporaryDirectory() as home:
                runs[form].append(await measure(Path(home), form))
            loads.append(os.getloadavg()[0])
        print(shown(name, runs), f"load {min(loads):.0f} to {max(loads):.0f}", flush=True)


async def waiting(only: str, rounds: int, seconds: float) -> None:
    """Print how long a publish waits."""
    if only not in LONE:
        return
    waits: dict[Form, list[tuple[float, float]]] = {form: [] for form in FORMS}
    for form in in_turn(rounds):
        with tempfile.TemporaryDirectory() as home:
            waits[form].append(await lone(seconds, Path(home), form))
    print(f"\n| {LONE} | p50, ms | p99, ms |\n|---|---|---|")
    for form, found in waits.items():
        half, most = (median(column) for column in zip(*found, strict=True))
        print(f"| {FORMS[form]} | {half:.1f} | {most:.1f} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
