"""What one sync for the commits of several processes could save: ``python -m benchmarks.studies.shared_syncs``.

Each process syncs the log by itself. A sync that begins after a commit covers it, whichever process has made either.
So this traces commits and syncs of several processes on one store, counts the syncs that another process's has covered
no later than they ended, and runs the same work without any sync: sharing them can't save more than that.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import pelton
from pelton.storage import committer, wal

JOBS, ROUNDS, CONCURRENCY = 20_000, 5, 64
SECONDS, IN_FLIGHT = 3.0, 1000


class Sync(NamedTuple):
    """One sync of a process: its last commit before it, its begin and its end, in seconds since boot."""

    committed: float
    begun: float
    ended: float


class Trace:
    """The commits and syncs of this process."""

    def __init__(self) -> None:
        self.syncs: list[Sync] = []
        self.commits = 0
        self._committed = 0.0
        commit, sync = committer.Committer._commit, wal.WalSync.sync
        trace = self

        def traced_commit(self: committer.Committer) -> None:
            commit(self)
            trace.commits += 1
            trace._committed = perf_counter()

        def traced_sync(self: wal.WalSync) -> None:
            committed, begun = trace._committed, perf_counter()
            sync(self)
            trace.syncs.append(Sync(committed, begun, perf_counter()))

        committer.Committer._commit = traced_commit  # type: ignore[method-assign]  # only in this child
        wal.WalSync.sync = traced_sync  # type: ignore[method-assign]  # only in this child


async def work(jet: pelton.Jet) -> int:
    """Drain the jobs; return how many this process ran."""
    queue = await jet.queue("bench")
    ran = 0

    async def noop() -> None:
        nonlocal ran
        ran += 1

    queue.job(noop)
    await queue.work(concurrency=CONCURRENCY, until_empty=True, handle_signals=False)
    return ran


async def publish(jet: pelton.Jet, in_flight: int) -> int:
    """Keep publishes in flight; return how many were acknowledged."""
    ended, published = perf_counter() + SECONDS, 0

    async def one(number: int) -> None:
        nonlocal published
        while perf_counter() < ended:
            await jet.publish(f"s.{number}", bytes(128))
            published += 1

    await asyncio.gather(*map(one, range(in_flight)))
    return published


async def child(path: str, sync: Any, in_flight: int) -> None:
    """Be one process: wait for a line, do the work, print what was traced."""
    trace = Trace()
    async with pelton.open(path, sync=sync) as jet:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begun, cpu = perf_counter(), process_time()
        done = await (publish(jet, in_flight) if in_flight else work(jet))
        found = {"done": done, "cpu": process_time() - cpu, "took": perf_counter() - begun}
    print(json.dumps({**found, "commits": trace.commits, "syncs": trace.syncs}), flush=True)


async def together(path: Path, processes: int, sync: str, in_flight: int) -> list[dict[str, Any]]:
    """Run processes that begin together; return what each has found."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "benchmarks.studies.shared_syncs", str(path), sync, str(in_flight))
    children = [
        await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26) for _ in range(processes)
    ]
    for each in children:
        assert each.stdout is not None
        await each.stdout.readline()
    answers = await asyncio.gather(*(each.communicate(b"\n") for each in children))
    return [json.loads(out) for out, _ in answers]


async def once(home: Path, processes: int, keys: int, sync: str, in_flight: int) -> list[dict[str, Any]]:
    """Fill a store and run the processes on it."""
    path = home / "a.pelton"
    async with pelton.open(path) as jet:
        if in_flight:
            await jet.create_stream("s", subjects=["s.>"])
        else:
            queue = await jet.queue("bench", exclusive=keys > 0)

            async def noop() -> None: ...

            job = queue.job(noop)
            for begin in range(0, JOBS, 1000):
                names = [f"key{number % keys}" for number in range(begin, begin + 1000)] if keys else None
                await job.enqueue_many([()] * 1000, keys=names)
    return await together(path, processes, sync, in_flight // processes)


def covered(found: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the number of syncs, and of those that another process's covered no later than they ended."""
    traces = [[Sync(*sync) for sync in each["syncs"]] for each in found]
    count = 0
    for place, mine in enumerate(traces):
        others = [sync for other, trace in enumerate(traces) if other != place for sync in trace]
        count += sum(
            any(sync.committed <= other.begun and other.ended <= sync.ended for other in others) for sync in mine
        )
    return sum(map(len, traces)), count


def row(name: str, processes: int, rounds: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Return a row of the table."""
    rates, cpu = (
        {sync: statistics.median(of(found) for found in of_sync) for sync, of_sync in rounds.items()}
        for of in (
            lambda found: sum(each["done"] for each in found) / max(each["took"] for each in found),
            lambda found: sum(each["cpu"] for each in found) / sum(each["done"] for each in found) * 1e6,
        )
    )
    last = rounds["commit"][-1]
    syncs, spared = covered(last)
    commits = sum(each["commits"] for each in last)
    lengths = [ended - begun for each in last for _, begun, ended in each["syncs"]]
    took = sum(each["took"] for each in last)
    cells = [
        name,
        str(processes),
        f"{commits:,}",
        f"{syncs:,}",
        f"{statistics.median(lengths) * 1e3:.2f}",
        f"{sum(lengths) / took:.0%}",
        f"{spared / syncs:.0%}",
        f"{rates['commit'] / 1e3:.1f} k, {cpu['commit']:.0f}",
        f"{rates['off'] / 1e3:.1f} k, {cpu['off']:.0f}",
        f"{rates['off'] / rates['commit']:.2f}x",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    heads = ["", "processes", "commits", "syncs", "one takes (ms)", "of the time", "covered by another's"]
    heads += ["rate, CPU us each", "without any sync", "at most"]
    print(f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n")
    for name, keys, in_flight in (("plain jobs", 0, 0), ("exclusive jobs", 4000, 0), ("publishes", 0, IN_FLIGHT)):
        for processes in (1, 2, 3, 6):
            rounds: dict[str, list[list[dict[str, Any]]]] = {"commit": [], "off": []}
            for _ in range(ROUNDS):
                for sync, of_sync in rounds.items():
                    with tempfile.TemporaryDirectory() as home:
                        of_sync.append(asyncio.run(once(Path(home), processes, keys, sync, in_flight)))
            print(row(name, processes, rounds), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(child(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        main()
