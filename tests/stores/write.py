"""Writes the stores of ``tests/stores``: one by each version of the schema, by the last commit that wrote it.

    python tests/stores/write.py            # all that are missing

Each is written by the Pelton of that commit, in a process that is killed while it holds jobs, locks and a term; what
that Pelton did not know is left out. When you change the schema, replace HEAD below with the commit before, and add a
line for the new version.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
# The last commit that wrote stores of a version; HEAD is what stands here.
COMMITS: Final = {1: "d1221f6e", 2: "0fe6ddd7", 3: "8e1683f5", 4: "79e723e5", 5: "c02a464a", 6: "HEAD"}

# Flows, limits, priorities and tenants are younger than schema 3.
FLOWS: Final = 4
KEY_RANKS: Final = 5


def main() -> None:
    for version, commit in COMMITS.items():
        if (target := HERE / f"schema-{version}.pelton.xz").exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = _source(commit, Path(folder))
            path = Path(folder) / "store.pelton"
            _run(source, "write", path)
            _run(source, "fold", path)
            target.write_bytes(lzma.compress(path.read_bytes()))
    if not (target := HERE / "schema-1-killed.pelton-wal.xz").exists():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "store.pelton"
            path.write_bytes(lzma.decompress((HERE / "schema-1.pelton.xz").read_bytes()))
            _run(ROOT / "src", "migrate", path)
            # The log of the migration: the file itself is as it was.
            target.write_bytes(lzma.compress(Path(f"{path}-wal").read_bytes()))


def _source(commit: str, folder: Path) -> Path:
    if commit == "HEAD":
        return ROOT / "src"
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


def _run(source: Path, step: str, path: Path) -> None:
    env = os.environ | {"PYTHONPATH": f"{source}"}
    done = subprocess.run([sys.executable, __file__, step, str(path)], env=env, check=False)
    if done.returncode != (0 if step == "fold" else -signal.SIGKILL):
        raise SystemExit(f"{step} by {source} ended with {done.returncode}")


def _fold(path: Path) -> None:
    """Fold the log that the killed process has left, as SQLite does, and nothing else."""
    import apsw

    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute("VACUUM")
    connection.close()


def _migrate(path: Path) -> None:
    """Die in the middle of a migration, when SQLite has written most of what it changed to the log."""
    from pelton.storage import Database, database

    migrate: Any = database.migrate

    def killed(connection: Any, version: int, goal: int) -> None:
        connection.execute("PRAGMA cache_size=1")
        migrate(connection, version, goal)
        os.kill(os.getpid(), signal.SIGKILL)

    database.migrate = killed
    Database(str(path))


async def write(path: Path) -> None:
    """Write the store, and die while jobs run, and a lock, a slot and a term are held."""
    import pelton

    jet = await pelton.open(path)
    notes: dict[str, Any] = {}
    await _streams(jet)
    await _buckets(jet)
    await _mail(jet, notes)
    await _garage(jet, notes)
    if hasattr(pelton, "Rate"):
        await _flows(jet, notes)
    notes["lock"] = (await jet.lock("deploy", ttl=30).acquire()).token
    notes["slot"] = (await jet.semaphore("gates", slots=2, ttl=30).acquire()).token
    async with jet.elect("scheduler", ttl=10) as term:
        notes["term"] = term.token
        await (await jet.create_bucket("notes")).put("notes", json.dumps(notes).encode())
        os.kill(os.getpid(), signal.SIGKILL)


async def _streams(jet: Any) -> None:
    orders = await jet.create_stream("orders", subjects=["orders.>"])
    await jet.create_stream("copy", sources=[{"name": "orders"}])
    for n in range(1, 11):
        side = "eu" if n % 2 else "us"
        await jet.publish(f"orders.{side}.{n}", b"order %d" % n, headers={"Number": str(n)}, msg_id=f"o-{n}")
    await orders.delete_message(8)
    ship = await orders.create_consumer(durable_name="ship", ack_policy="explicit", ack_wait=30)
    for message in await ship.fetch(6, timeout=5):
        # The acks reach up to 3, and leave a gap: 4 and 6 are in flight.
        if message.data in (b"order 1", b"order 2", b"order 3", b"order 5"):
            await message.ack()
    await orders.create_consumer(durable_name="audit", ack_policy="explicit", filter_subject="orders.eu.>")
    await jet.create_stream("tasks", subjects=["tasks.>"], retention="workqueue")
    await jet.create_stream("news", subjects=["news.>"], retention="interest")
    news = await jet.stream("news")
    await news.create_consumer(durable_name="reader", ack_policy="explicit")
    for n in range(3):
        await jet.publish(f"tasks.{n}", b"%d" % n)
        await jet.publish(f"news.{n}", b"%d" % n)


async def _buckets(jet: Any) -> None:
    config = await jet.create_bucket("config", history=5)
    for value in (b"red", b"green", b"blue"):
        await config.put("colour", value)
    await config.put("size", b"9")
    await config.put("gone", b"x")
    await config.delete("gone")
    files = await jet.create_objects("files")
    await files.put("report", b"line\n" * 60_000)


def _register(queue: Any) -> Any:
    @queue.job(max_attempts=3)
    async def send(n: int) -> int:
        return n

    return send


async def _took(queue: Any, count: int, key: str = "") -> list[Any]:
    """Take jobs that are never settled: the process dies with them."""
    claims = await queue.claims().__aenter__()
    jobs = [(await claims.take(1, timeout=5))[0] for _ in range(count)]
    _alive.append(claims)
    return jobs


_alive: Final[list[Any]] = []


async def _end(queue: Any, *errors: Exception | None) -> None:
    """Take jobs one after another, and end each: with an error, or None."""
    async with queue.claims() as claims:
        for error in errors:
            (job,) = await claims.take(1, timeout=5)
            if error is None:
                job.complete(json.loads(bytes(job.args))["n"])
            else:
                job.fail(error)
            await claims.settle([job])


async def _mail(jet: Any, notes: dict[str, Any]) -> None:
    """0, 1 completed, 2 a dead letter, 3 in its backoff, 4 taken by a worker that dies, 5 to 7 wait; 8 is known."""
    import pelton

    queue = await jet.queue("mail", history_max_age=0)
    send = _register(queue)
    for n in range(4):
        await send.enqueue(n)
    permanent = pelton.PermanentJobError("no such address")
    await _end(queue, None, None, permanent, pelton.RetryJob(600))
    await send.enqueue(4)
    notes["mail"] = (await _took(queue, 1))[0].token
    for n in (5, 6, 7):
        await send.enqueue(n)
    notes["known"] = (await send.enqueue(8, idempotency_key="eight")).id
    if hasattr(queue, "options"):
        await queue.options(delay=3600).enqueue(send, 20)
        notes["unique"] = (await queue.options(unique="arguments").enqueue(send, 21)).id
        await queue.options(priority=3).enqueue(send, 22)
        for n in (23, 24):
            await queue.options(tenant="acme").enqueue(send, n)
        await queue.options(tenant="other", priority=1).enqueue(send, 25)
        await queue.weigh("acme", 3)
        await queue.schedule("hourly", send, args=(26,), cron="0 * * * *")


async def _garage(jet: Any, notes: dict[str, Any]) -> None:
    """Exclusive: of car1 0 runs and 1, 2 wait; of car2 3 is done, 4 in its backoff, 5 waits; 6 of car3 is dead."""
    import pelton

    queue = await jet.queue("garage", exclusive=True, history_max_age=0)
    send = _register(queue)
    for n in (3, 4):
        await send.enqueue(n, key="car2")
    await _end(queue, None, pelton.RetryJob(600))
    await send.enqueue(6, key="car3")
    await _end(queue, pelton.PermanentJobError("no wheels"))
    for n in range(3):
        await send.enqueue(n, key="car1")
    notes["garage"] = (await _took(queue, 1))[0].token
    await send.enqueue(5, key="car2")
    await send.enqueue(7, key="car.3/x")
    await send.enqueue(8, key="ä b")
    await send.enqueue(9)
    if hasattr(queue, "options"):
        if hasattr(queue.names, "key_ranks"):
            await queue.options(key="car1", priority=2).enqueue(send, 20)
        await queue.options(key="car9", delay=3600).enqueue(send, 21)
        notes["place"] = (await queue.options(key="car8", unique="key").enqueue(send, 22)).id


async def _flows(jet: Any, notes: dict[str, Any]) -> None:
    """Limits, and a flow: its first job has ended, the second runs and holds slots of both, the third waits for it."""
    import pelton

    queue = await jet.queue("plant", history_max_age=0)
    begun = asyncio.Event()
    send = _register(queue)

    @queue.job
    async def hang(n: int) -> int:
        begun.set()
        await asyncio.sleep(3600)
        return n

    await queue.limit(concurrency=2)
    await queue.limit(job="hang", rate=pelton.Rate(100, per=1), concurrency=1)
    flow = await queue.new_flow("order")
    second = flow.add(hang, flow.add(send, 1).result)
    flow.options(after=[second]).add(send, 3)
    notes["flow"] = (await flow.enqueue()).id
    _alive.append(asyncio.create_task(queue.work(handle_signals=False)))
    await begun.wait()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        path = Path(sys.argv[2])
        {"write": lambda: asyncio.run(write(path)), "fold": lambda: _fold(path), "migrate": lambda: _migrate(path)}[
            sys.argv[1]
        ]()
