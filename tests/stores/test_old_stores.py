"""Stores that earlier versions wrote, one of each schema, open with this one, and nothing in them is lost.

``write.py`` has written them, and says what they hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

import pelton
from pelton import observe
from pelton.api import StoreSettingsError
from pelton.cli.main import main, parser
from pelton.engine.salvage import recount
from pelton.queue import JobContext, Queue
from pelton.runtime import Ids, Random
from pelton.storage import SCHEMA_VERSION, schema
from pelton.storage.schema import add_functions
from pelton.testing import ManualClock, drain
from pelton.testing.clock import ManualRuntime
from tests.storage.stores import raw
from tests.stores.write import FLOWS, HERE, KEY_RANKS

VERSIONS: Final = range(1, SCHEMA_VERSION + 1)

EVERY_VERSION: Final = pytest.mark.parametrize("store", VERSIONS, indirect=True)
OLDER: Final = pytest.mark.parametrize("store", VERSIONS[:-1], indirect=True)


@dataclass
class Store:
    """A store of an earlier version, and a clock that goes on from when it was written."""

    path: Path
    version: int
    runtime: ManualRuntime

    @property
    def clock(self) -> ManualClock:
        return self.runtime.clock

    def open(self, **options: Any) -> Any:
        return pelton.open(self.path, runtime=self.runtime, **options)


def unpacked(version: int, path: Path) -> Store:
    path.write_bytes(lzma.decompress((HERE / f"schema-{version}.pelton.xz").read_bytes()))
    with raw(path) as connection:
        ((written,),) = connection.execute("SELECT max(last_ts) FROM stream_state").fetchall()
        assert connection.execute("PRAGMA user_version").fetchall() == [(version,)]
    assert isinstance(written, int)
    return Store(path, version, ManualRuntime(clock=ManualClock(written), random=Random(0), ids=Ids(Random(0))))


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return unpacked(request.param, tmp_path / "store.pelton")


async def notes(jet: pelton.Jet) -> dict[str, Any]:
    """What the version that wrote the store knew of it."""
    found: dict[str, Any] = json.loads((await (await jet.bucket("notes")).get("notes")).value)
    return found


# --- streams, buckets, objects


@EVERY_VERSION
async def test_streams_and_their_consumers(store: Store) -> None:
    async with store.open() as jet:
        orders = await jet.stream("orders")
        state = (await orders.info()).state
        assert (state.messages, state.first_seq, state.last_seq) == (9, 1, 10)
        message = await orders.get_message(7)
        assert (message.subject, message.data, message.headers["Number"]) == ("orders.eu.7", b"order 7", "7")
        ship = await orders.consumer("ship")
        info = await ship.info()
        assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (3, 2, 3)
        assert (await (await orders.consumer("audit")).info()).num_pending == 5
        # What its last holder had in flight comes again, once; then what follows.
        store.clock.advance(31)
        found = [bytes(message.data) for message in await ship.fetch(9, timeout=0)]
        assert found == [b"order %d" % n for n in (4, 6, 7, 9, 10)]
        assert (await jet.publish("orders.eu.10", msg_id="o-10")).duplicate
        assert (await jet.publish("orders.eu.11", msg_id="o-11")).seq == 11
        assert (await (await jet.stream("copy")).info()).state.messages == 11
        for name in ("tasks", "news"):
            assert (await (await jet.stream(name)).info()).state.messages == 3
        reader = await (await jet.stream("news")).consumer("reader")
        for message in await reader.fetch(3, timeout=0):
            await message.ack()
        assert (await (await jet.stream("news")).info()).state.messages == 0
    assert recount(str(store.path)) == []


@EVERY_VERSION
async def test_what_is_made_again_with_the_same_settings_is_what_is_there(store: Store) -> None:
    async with store.open() as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await orders.create_consumer(durable_name="ship", ack_policy="explicit", ack_wait=30)
        await jet.create_stream("copy", sources=[{"name": "orders"}])
        await jet.create_bucket("config", history=5)
        await jet.create_objects("files")


@EVERY_VERSION
async def test_buckets_and_objects(store: Store) -> None:
    async with store.open() as jet:
        config = await jet.bucket("config")
        assert [entry.value for entry in await config.history("colour")] == [b"red", b"green", b"blue"]
        assert {key async for key in config.keys()} == {"colour", "size"}  # noqa: SIM118 - a bucket is no mapping
        assert [entry.operation for entry in await config.history("gone")] == ["put", "delete"]
        revision = (await config.get("colour")).revision
        assert await config.update("colour", b"black", revision) > revision
        files = await jet.objects("files")
        assert await files.get("report") == b"line\n" * 60_000
        await files.put("report", b"new")
        assert await files.get("report") == b"new"


@EVERY_VERSION
async def test_what_is_held_stays_held_and_tokens_go_on(store: Store) -> None:
    async with store.open() as jet:
        told = await notes(jet)
        lock, gates = jet.lock("deploy", ttl=30), jet.semaphore("gates", slots=2, ttl=30)
        assert await lock.try_acquire() is None
        assert len(await gates.holders()) == 1
        election = jet.elect("scheduler", ttl=10)
        leader = await election.leader()
        assert leader is not None
        assert leader.token == told["term"]
        store.clock.advance(31)
        held = await until(store.clock, lock.acquire())
        assert held.token > told["lock"]
        for _ in range(2):
            assert (await until(store.clock, gates.acquire())).token > told["slot"]
        term = await until(store.clock, election.__aenter__())
        assert term.token > told["term"]
        await election.__aexit__(None, None, None)
        await held.release()


async def until(clock: ManualClock, coroutine: Awaitable[Any]) -> Any:
    """Turn the clock until something has ended."""
    task = asyncio.ensure_future(coroutine)
    while not task.done():
        clock.advance(0.1)
        await asyncio.sleep(0.001)
    return await task


# --- queues


def working(queue: Queue) -> list[tuple[str, int, int]]:
    """Register the jobs of the store; return the list of what runs: key, number, attempt."""
    ran: list[tuple[str, int, int]] = []

    @queue.job(max_attempts=3)
    async def send(n: int, context: JobContext) -> int:
        ran.append((context.key, n, context.attempt))
        return n

    @queue.job
    async def hang(n: int, context: JobContext) -> int:
        return await send(n, context)

    return ran


async def worked(store: Store, queue: Queue) -> None:
    """Work until nothing is left: after the dead worker's lease, the backoffs, and the delays."""
    await drain(queue)
    for seconds in (31, 600, 3000):
        store.clock.advance(seconds)
        await drain(queue)


def by_number(ran: list[tuple[str, int, int]]) -> dict[int, int]:
    found = {n: attempt for _, n, attempt in ran}
    assert len(found) == len(ran), "a job ran twice"
    return found


@EVERY_VERSION
async def test_the_jobs_of_a_plain_queue(store: Store) -> None:
    async with store.open() as jet:
        queue = await jet.queue("mail")
        ran = working(queue)
        told, younger = await notes(jet), store.version >= FLOWS
        counts = await queue.counts()
        # What has begun is marked beside the store, and these have come without it: the job of the dead worker counts
        # as taken.
        assert (counts.running, counts.retrying, counts.completed, counts.failed) == (0, 1, 2, 1)
        assert (counts.pending, counts.scheduled) == ((10, 1) if younger else (5, 0))
        again = await queue.options(idempotency_key="eight").enqueue("send", n=8)
        assert (again.duplicate, again.id) == (True, told["known"])
        if younger:
            assert (await queue.options(unique="arguments").enqueue("send", n=21)).id == told["unique"]
            assert [schedule.name for schedule in await queue.schedules()] == ["hourly"]
            await queue.unschedule("hourly")
        # What this version can do, it does in that queue, too.
        await queue.options(priority=3).enqueue("send", n=30)
        await queue.options(tenant="new", delay=60).enqueue("send", n=31)
        await worked(store, queue)
        assert ran[0][1] in (22, 30)
        first = dict.fromkeys((5, 6, 7, 8, 30, 31), 1)
        assert by_number(ran) == first | {3: 2, 4: 1} | (dict.fromkeys(range(20, 26), 1) if younger else {})
        counts = await queue.counts()
        assert (counts.pending, counts.running, counts.retrying, counts.scheduled) == (0, 0, 0, 0)
        assert counts.completed == 2 + len(ran)
        outcomes = [json.loads(bytes(outcome.result)) async for outcome in queue.history("completed")]
        assert sorted(outcomes) == sorted([0, 1, *by_number(ran)])
        ran.clear()
        (letter,) = [letter async for letter in queue.dead_letters()]
        assert "no such address" in letter.outcome.error
        await queue.redrive(letter.outcome.id)
        await drain(queue)
        assert by_number(ran) == {2: 1}
    assert recount(str(store.path)) == []


@EVERY_VERSION
async def test_the_jobs_of_an_exclusive_queue(store: Store) -> None:
    async with store.open() as jet:
        queue = await jet.queue("garage")
        ran = working(queue)
        told = await notes(jet)
        async with queue.claims() as claims:
            # Neither of a key that a worker holds, nor of one whose job waits for its next attempt.
            taken = await claims.take(100)
            assert {job.key for job in taken} <= {"", "car.3/x", "ä b", "car8"}
        if store.version >= FLOWS:
            assert (await queue.options(key="car8", unique="key").enqueue("send", n=22)).id == told["place"]
        await queue.options(key="car1").enqueue("send", n=30)
        await worked(store, queue)
        of_key = defaultdict(list)
        for key, n, _ in ran:
            of_key[key].append(n)
        assert [n for n in of_key.pop("car1") if n != 20] == [0, 1, 2, 30]
        younger = {"car8": [22], "car9": [21]} if store.version >= FLOWS else {}
        assert of_key == {"car2": [4, 5], "car.3/x": [7], "ä b": [8], "": [9]} | younger
        assert (20 in by_number(ran)) == (store.version >= KEY_RANKS)
        assert {n for n, attempt in by_number(ran).items() if attempt > 1} == {4}
        ran.clear()
        (letter,) = [letter async for letter in queue.dead_letters()]
        await queue.redrive(letter.outcome.id)
        await queue.options(key="car3").enqueue("send", n=31)
        async with queue.claims() as claims:
            (job,) = await claims.take(100)
            assert (job.key, json.loads(bytes(job.args))) == ("car3", {"n": 6})
            assert job.token > told["garage"]
        await drain(queue)
        assert [n for _, n, _ in ran] == [6, 31]
    assert recount(str(store.path)) == []


@pytest.mark.parametrize("store", VERSIONS[FLOWS - 1 :], indirect=True)
async def test_flows_and_limits(store: Store) -> None:
    async with store.open() as jet:
        queue = await jet.queue("plant")
        ran = working(queue)
        assert len(await queue.limits()) == 2
        flow = queue.flow((await notes(jet))["flow"])
        assert (await flow.status()).state == "running"
        await worked(store, queue)
        assert ran == [("", 1, 1), ("", 3, 1)]
        assert (await flow.status()).state == "completed"


# --- looking


@EVERY_VERSION
async def test_looking_changes_nothing(store: Store) -> None:
    before = store.path.read_bytes()
    assert recount(str(store.path)) == []
    async with store.open(read_only=True) as jet:
        for name in await jet.queue_names():
            assert (await (await jet.queue(name)).counts()).pending > 0
            queue = await jet.queue(name, create=False)
            views: list[Any] = [
                queue.counts(),
                queue.workers(),
                queue.limits(),
                queue.schedules(),
                queue.tenants(),
                queue.weights(),
                *(observe_one(jet, name) for observe_one in QUEUE_VIEWS),
            ]
            for view in views:
                await view
            jobs = [job async for job in queue.jobs()]
            assert len(jobs) >= 1
            for each in (*jobs, *[outcome async for outcome in queue.history()]):
                assert (await queue.get(each.id)).id == each.id
            async for letter in queue.dead_letters():
                assert await observe.dead_letter(jet, name, letter.outcome.id) == letter
        assert len(await observe.lock_summaries(jet)) == 2
        await observe.election_summaries(jet)
        await observe.store_summary(jet)
        await observe.consumer_summaries(jet)
        orders = await jet.stream("orders")
        assert (await (await orders.consumer("ship")).info()).num_pending == 3
        assert (await orders.get_message(7)).data == b"order 7"
    assert store.path.read_bytes() == before
    assert [path.name for path in store.path.parent.iterdir()] == ["store.pelton"]


@OLDER
async def test_somebody_migrates_while_it_is_looked_at(store: Store) -> None:
    """Whoever has it open for reading goes on; by an older Pelton, it would be refused."""
    # A process of an older Pelton has the store open.
    with raw(store.path) as older:
        older.execute("SELECT count(*) FROM streams").fetchall()
        async with store.open(read_only=True) as look:
            orders = await look.stream("orders")
            assert (await orders.info()).state.messages == 9
            older.execute("UPDATE meta SET value=value WHERE key='catalogue'")
            assert (await orders.info()).state.messages == 9
            async with store.open() as jet:
                await jet.publish("orders.eu.11")
                assert (await orders.info()).state.messages == 10
                assert (await (await orders.consumer("ship")).info()).num_pending == 4


def told(path: Path) -> tuple[int, object]:
    """The schema of a store, and something that all versions tell."""
    with raw(path) as connection:
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        assert isinstance(version, int)
        return version, connection.execute("SELECT * FROM m_1").fetchall()


@EVERY_VERSION
@pytest.mark.parametrize("chosen", [None, ["orders", "copy", "JOBS_mail"]])
async def test_a_backup_has_the_schema_of_the_store(store: Store, tmp_path: Path, chosen: list[str] | None) -> None:
    before, copy = store.path.read_bytes(), tmp_path / "copy.pelton"
    pelton.backup(store.path, copy, streams=chosen)
    assert store.path.read_bytes() == before
    assert told(copy) == told(store.path)
    assert recount(str(copy)) == []
    # Its tokens are others than those of the store.
    async with Store(copy, store.version, store.runtime).open() as jet, store.open() as original:
        for name in chosen or await original.stream_names():
            there, here = [await (await each.stream(name)).info() for each in (jet, original)]
            assert there.state == here.state
        found = await (await jet.stream("orders")).consumer("ship")
        assert (await found.info()).ack_floor.stream_seq == 3
    with raw(copy) as one, raw(store.path) as other:
        floor = "SELECT value FROM meta WHERE key='token_floor'"
        assert one.execute(floor).fetchall() > other.execute(floor).fetchall()
    assert recount(str(copy)) == []


@EVERY_VERSION
async def test_what_is_salvaged_of_an_old_store(store: Store, tmp_path: Path) -> None:
    before, saved = store.path.read_bytes(), tmp_path / "saved.pelton"
    assert pelton.salvage(store.path, saved) == []
    assert store.path.read_bytes() == before
    async with store.open(read_only=True) as there, pelton.open(saved, read_only=True, runtime=store.runtime) as here:
        for name in await there.stream_names():
            expected, found = [await (await each.stream(name)).info() for each in (there, here)]
            assert found.state == expected.state
            assert [one.name for one in await observe.consumer_summaries(here, name)] == [
                one.name for one in await observe.consumer_summaries(there, name)
            ]
        ship = await (await here.stream("orders")).consumer("ship")
        assert ((await ship.info()).ack_floor.stream_seq, (await ship.info()).num_ack_pending) == (3, 2)


@pytest.mark.parametrize("table", ["pending", "consumer_state", "claims"])
@pytest.mark.parametrize("store", VERSIONS[:-2:2], indirect=True)
def test_a_damaged_page_of_an_old_store_hides_no_others(store: Store, tmp_path: Path, table: str) -> None:
    with raw(store.path) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name=?", (table,)).fetchall()
        assert isinstance(page, int)
    with store.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xee" * 4096)
    before, saved = store.path.read_bytes(), tmp_path / "saved.pelton"
    assert pelton.verify(store.path) != []
    lost = pelton.salvage(store.path, saved)
    assert store.path.read_bytes() == before
    assert pelton.verify(saved) == []
    assert any(("pelton_deliveries" if table in ("pending", "consumer_state") else table) in line for line in lost)
    with raw(saved) as connection:
        counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in HELD}
    assert counts["stream_state"] == counts["streams"] > 10
    assert counts["consumers"] == counts["consumer_state"] > 3


HELD: Final = ("streams", "stream_state", "consumers", "consumer_state")


@OLDER
async def test_streams_of_an_old_backup_are_restored(store: Store, tmp_path: Path) -> None:
    before = store.path.read_bytes()
    async with pelton.open(tmp_path / "new.pelton", runtime=store.runtime) as jet:
        names = await jet.restore(store.path)
        assert "orders" in names
        ship = await (await jet.stream("orders")).consumer("ship")
        assert ((await ship.info()).ack_floor.stream_seq, (await ship.info()).num_ack_pending) == (3, 2)
        assert (await (await jet.queue("mail", create=False)).counts()).completed == 2
    assert store.path.read_bytes() == before
    assert recount(str(tmp_path / "new.pelton")) == []


LOOKS: Final[dict[str, Sequence[str]]] = {
    "info": ("{0}",),
    "stream ls": ("{0}",),
    "stream info": ("{0} orders",),
    "stream get": ("{0} orders 7",),
    "stream tail": ("{0} orders",),
    "consumer ls": ("{0}", "{0} orders"),
    "consumer info": ("{0} orders ship",),
    "kv ls": ("{0}", "{0} config"),
    "kv get": ("{0} config colour",),
    "kv history": ("{0} config colour",),
    "object ls": ("{0} files",),
    "object info": ("{0} files report",),
    "object get": ("{0} files report {1}",),
    "queue ls": ("{0}",),
    "queue info": ("{0} mail", "{0} garage"),
    "queue tenants": ("{0} mail",),
    "jobs ls": ("{0} mail", "{0} mail --state completed", "{0} garage --state pending --job hang"),
    "jobs keys": ("{0} garage",),
    "jobs show": ("{0} mail 5", "{0} garage 4"),
    "dead ls": ("{0} mail",),
    "dead errors": ("{0} mail",),
    "dead show": ("{0} mail 3",),
    "flow ls": ("{0} mail",),
    "limits ls": ("{0}",),
    "cron ls": ("{0}",),
    "workers": ("{0}",),
    "locks": ("{0}",),
    "elections": ("{0}",),
    "top": ("{0} --count 1",),
    "metrics": ("{0} --once",),
    "audit": ("{0}",),
    "sql": ("{0} SELECT+count(*)+FROM+streams",),
    "verify": ("{0}",),
    "backup": ("{0} {1}",),
    "salvage": ("{0} {1}",),
    "copy": ("{0} {1} --stream orders",),
    "restore": ("{0} {1}",),
}
"""The arguments of commands that only look at a store: the store, and a file that is made."""
SHOWN_APART: Final = {"flow show"}


def looking_commands() -> set[str]:
    """Return all commands that open a store to look at it, by what they say themselves."""
    groups = next(action.choices for action in parser()._actions if action.dest == "==SUPPRESS==" and action.choices)
    found: set[str] = set()
    for group in groups:
        chosen = next(one.choices[group] for one in parser(group)._actions if isinstance(one.choices, dict))
        verbs = next((one.choices for one in chosen._actions if isinstance(one, argparse._SubParsersAction)), None)
        leaves = {group: chosen} if verbs is None else {f"{group} {verb}": one for verb, one in verbs.items()}
        found |= {name for name, leaf in leaves.items() if leaf.get_default("writes") is False}
    return found


def test_all_commands_that_look_are_tried() -> None:
    assert len(looking_commands()) > 30
    assert looking_commands() <= LOOKS.keys() | SHOWN_APART


@pytest.mark.parametrize("version", VERSIONS)
def test_commands_that_look(tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = unpacked(version, tmp_path / "store.pelton").path
    before = path.read_bytes()
    for number, command in enumerate(f"{name} {words}" for name, each in LOOKS.items() for words in each):
        words = command.format(path, tmp_path / f"{number}.pelton").split()
        assert main([word.replace("+", " ") for word in words]) == 0, f"{command}: {capsys.readouterr().err}"
        assert told(path)[0] == version, command
    assert path.read_bytes() == before
    for command in ("compact {0}", "rekey {0} --new-key-file {1}"):
        (tmp_path / "key").write_text("secret")
        assert main(command.format(path, tmp_path / "key").split()) == 0, capsys.readouterr().err
    with raw(path, "secret") as connection:
        assert connection.execute("PRAGMA user_version").fetchall() == [(version,)]


@OLDER
def test_arrow_reads_it_as_it_is(store: Store, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pelton.arrow")
    before = store.path.read_bytes()
    reader = arrow.open(store.path)
    assert reader.stream("orders").read_all().num_rows == 9
    one = reader.stream("orders", subjects="orders.eu.7", columns=["data"])
    assert one.read_all().to_pylist() == [{"data": b"order 7"}]
    assert reader.queue_history("mail").read_all().num_rows == 3
    assert reader.to_parquet("orders", tmp_path / "parquet") == 9
    assert store.path.read_bytes() == before


@OLDER
def test_spark_reads_it_as_it_is(store: Store) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from pelton.spark.pipelines.dead_letter_redrive import queue_store
    from pelton.spark.pipelines.session import clean_up
    from pelton.spark.read.read_options import read_options
    from pelton.spark.read.readers import PeltonBatchReader, PeltonStreamReader

    before, columns = store.path.read_bytes(), types.StructType().add("sequence", "long")

    def rows_of(reader: Any, parts: Sequence[Any]) -> int:
        return sum(batch.num_rows for part in parts for batch in reader.read(part))

    for given, count in (({}, 9), ({"subjects": "orders.eu.7"}, 1), ({"startingSequence": "7"}, 3)):
        options = read_options({"path": str(store.path), "stream": "orders", **given})
        batch = PeltonBatchReader(options, columns)
        assert rows_of(batch, batch.partitions()) == count
        query = PeltonStreamReader(options, columns)
        began = query.initialOffset()
        ended = query.latestOffset(began, ReadMaxRows(100))
        assert rows_of(query, query.partitions(began, ended)) == count
        query.stop()
    queue_store("mail", {"path": str(store.path)})
    clean_up({"path": str(store.path)})
    assert store.path.read_bytes() == before


QUEUE_VIEWS: Final[tuple[Callable[[pelton.Jet, str], Awaitable[object]], ...]] = (
    observe.queue_summary,
    observe.list_jobs,
    observe.list_dead_letters,
    observe.group_dead_letters,
    observe.job_schedules,
    observe.tenant_counts,
    observe.key_counts,
    observe.flow_summaries,
    observe.limit_summaries,
    observe.worker_summaries,
)


# --- migrating


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_migrate(tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]) -> None:
    path, kept = unpacked(version, tmp_path / "store.pelton").path, tmp_path / "kept.pelton"
    was = told(path)
    assert main(["migrate", str(path), "--keep", str(kept)]) == 0
    assert f"migrated from schema {version} to {SCHEMA_VERSION}; as it was: {kept}" in capsys.readouterr().out
    assert told(path) == (SCHEMA_VERSION, was[1])
    assert told(kept) == was
    assert main(["migrate", str(path), "--keep", str(kept)]) == 0
    assert "up to date" in capsys.readouterr().out
    assert pelton.migrate(kept) == version
    assert recount(str(path)) == recount(str(kept)) == []


def test_what_is_kept_is_there_before_anything_is_migrated(tmp_path: Path) -> None:
    path, kept = unpacked(3, tmp_path / "store.pelton").path, tmp_path / "kept.pelton"
    kept.write_text("mine")
    with pytest.raises(StoreSettingsError, match="exists"):
        pelton.migrate(path, keep=kept)
    assert told(path)[0] == 3
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("version", VERSIONS[:-1])
async def test_a_migration_that_was_killed(tmp_path: Path, version: int, committed: bool) -> None:
    """The files as they are when the process dies: in the middle, or after the commit, and the log is not folded."""
    store, found = unpacked(version, tmp_path / "store.pelton"), tmp_path / "found.pelton"
    connection = apsw.Connection(str(store.path))
    connection.execute("PRAGMA journal_mode=WAL")
    add_functions(connection)
    connection.execute("BEGIN IMMEDIATE; PRAGMA cache_size=1")
    schema.migrate(connection, version, SCHEMA_VERSION)
    if committed:
        connection.execute("COMMIT")
    for end in ("", "-wal", "-shm"):
        shutil.copyfile(f"{store.path}{end}", f"{found}{end}")
    assert Path(f"{found}-wal").stat().st_size
    connection.close()
    await check_whole(Store(found, version, store.runtime))


async def test_what_a_killed_migration_left(tmp_path: Path) -> None:
    store = unpacked(1, tmp_path / "store.pelton")
    log = lzma.decompress((HERE / "schema-1-killed.pelton-wal.xz").read_bytes())
    Path(f"{store.path}-wal").write_bytes(log)
    await check_whole(store)


async def check_whole(store: Store) -> None:
    assert recount(str(store.path)) == []
    async with store.open() as jet:
        with raw(store.path) as connection:
            assert connection.execute("PRAGMA user_version").fetchall() == [(SCHEMA_VERSION,)]
        queue = await jet.queue("mail")
        ran = working(queue)
        await worked(store, queue)
        assert {3, 4, 5, 6, 7, 8} <= set(by_number(ran))


def test_there_is_one_of_every_version() -> None:
    kept = {int(path.name.split("-")[1].split(".")[0]) for path in HERE.glob("schema-?.pelton.xz")}
    assert kept == set(VERSIONS), "before you change the schema, keep a store of the one before: see write.py"
