"""A store opened only to be read: every answer, no write, no file beside it, and whoever writes goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import ConsumerList, StreamList
from pelton.testing import manual_runtime

FILES = ["a.pelton"]


def beside(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with a stream, two consumers, a bucket and an object, which no process has open."""
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
        for number in range(5):
            await jet.publish(f"orders.{number % 2}", b"%d" % number)
        worker = await orders.create_consumer(durable_name="worker")
        await orders.create_consumer(durable_name="other", filter_subject="orders.0")
        first, _ = await worker.fetch(2)
        await first.ack()
        bucket = await jet.create_bucket("settings", history=3)
        await bucket.put("colour", b"red")
        await bucket.put("colour", b"blue")
        await (await jet.create_objects("files")).put("a", b"content")
    return path


@pytest.fixture
async def jet(path: Path) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(path, read_only=True) as opened:
        yield opened


async def everything(jet: pelton.Jet) -> list[object]:
    """Return what a store answers, apart from the time of the answer."""
    streams = (await jet.backend.call(StreamList())).streams
    consumers = (await jet.backend.call(ConsumerList(stream="orders"))).consumers
    for info in (*streams, *consumers):
        info.ts = ""
    orders, settings = await jet.stream("orders"), await jet.bucket("settings")
    return [
        streams,
        consumers,
        await jet.stream_names(),
        await orders.get_messages(),
        await orders.get_last_message("orders.1"),
        [key async for key in settings.keys()],  # noqa: SIM118
        (await settings.get("colour")).value,
    ]


async def test_it_answers_as_an_opener_that_writes(path: Path, jet: pelton.Jet) -> None:
    seen = await everything(jet)
    assert beside(path) == FILES
    async with pelton.open(path) as writer:
        assert await everything(writer) == seen
        assert await everything(jet) == seen


async def test_buckets_and_objects_are_read(jet: pelton.Jet) -> None:
    settings, files = await jet.bucket("settings"), await jet.objects("files")
    assert [entry.value for entry in await settings.history("colour")] == [b"red", b"blue"]
    with pytest.raises(pelton.BucketKeyNotFoundError):
        await settings.history("nothing")
    assert [info.name async for info in files.list()] == ["a"]
    assert await files.get("a") == b"content"
    seen: list[object] = []

    async def watch() -> None:
        async for entry in settings.watch():
            seen.append(entry and entry.value)

    with pytest.raises(pelton.StoreReadOnlyError):
        await watch()
    assert seen == [b"blue", None]


async def test_the_numbers_of_consumers_are_there(jet: pelton.Jet) -> None:
    info = await (await (await jet.stream("orders")).consumer("worker")).info()
    assert (info.num_pending, info.num_ack_pending, info.delivered.stream_seq, info.ack_floor.stream_seq) == (
        3,
        1,
        2,
        1,
    )


async def test_nothing_is_written_and_no_file_appears(path: Path) -> None:
    before = path.read_bytes(), path.stat().st_mtime_ns
    async with pelton.open(path, read_only=True) as jet:
        await everything(jet)
        async with jet.read() as view:
            assert await view.sql("SELECT count(*) FROM streams") == [(3,)]
            assert beside(path) == FILES
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert beside(path) == FILES


async def test_what_others_write_is_seen(path: Path, jet: pelton.Jet) -> None:
    orders = await jet.stream("orders")
    async with pelton.open(path) as writer:
        for number in range(5, 8):
            await writer.publish("orders.2", b"%d" % number)
            assert (await orders.info()).state.messages == number + 1
            assert (await orders.get_last_message("orders.2")).data == b"%d" % number
        await writer.create_stream("more", subjects=["more"])
        assert "more" in await jet.stream_names()
        await writer.delete_stream("more")
        assert "more" not in await jet.stream_names()
    assert (await orders.info()).state.messages == 8


async def test_what_is_opened_and_closed_between_two_reads_is_seen(path: Path, jet: pelton.Jet) -> None:
    orders = await jet.stream("orders")
    for number in range(6, 9):
        async with pelton.open(path) as writer:
            await writer.publish("orders.2", b"x")
        assert (await orders.info()).state.messages == number
        assert beside(path) == FILES


async def test_a_read_is_repeated_if_the_store_is_opened_meanwhile(
    path: Path, jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file without locks gives while its log is folded into it may be torn."""
    from pelton.engine import read_only_engine

    answers: list[int] = []
    original = read_only_engine.living_answer

    def interfering(session: Any, request: Any) -> Any:
        answer = original(session, request)
        answers.append(answer.state.messages)
        if len(answers) == 1:
            program = (
                "import pelton, sys\nwith pelton.sync.open(sys.argv[1]) as jet: jet.publish('orders.9', b'x' * 100_000)"
            )
            subprocess.run([sys.executable, "-c", program, str(path)], check=True)
        return answer

    orders = await jet.stream("orders")
    monkeypatch.setattr(read_only_engine, "living_answer", interfering)
    assert (await orders.info()).state.messages == 6
    assert answers == [5, 6]


async def test_publishers_do_not_wait_for_a_snapshot(path: Path, jet: pelton.Jet) -> None:
    async with pelton.open(path) as writer, jet.read() as view, writer.read() as own:
        for reads in (view, own):
            assert await reads.sql("SELECT count(*) FROM m_1") == [(5,)]
        for number in range(50):
            await writer.publish("orders.7", b"%d" % number)
        for reads in (view, own):
            assert await reads.sql("SELECT count(*) FROM m_1 WHERE subject=?", ["orders.7"]) == [(0,)]
    async with pelton.open(path) as writer, writer.read() as own:
        assert await own.sql("SELECT count(*) FROM m_1 WHERE subject=:it", {"it": "orders.7"}) == [(50,)]


async def test_a_publisher_goes_on_while_a_statement_runs(path: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    async with pelton.open(path) as writer:

        async def look() -> None:
            async with writer.read() as view:
                await view.sql(endless)

        running = asyncio.ensure_future(look())
        for number in range(20):
            await writer.publish("orders.7", b"%d" % number)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_snapshot_that_is_held_for_too_long_ends(path: Path) -> None:
    async with pelton.open(path, read_only=True) as jet, jet.read(timeout=0.05) as view:
        with pytest.raises(pelton.SnapshotTimeoutError):
            await view.sql("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")
        with pytest.raises(pelton.SnapshotTimeoutError):
            await view.sql("SELECT 1")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine(x)",
        "CREATE TEMP TABLE mine(x)",
        "DELETE FROM streams",
        "INSERT INTO m_1 SELECT * FROM m_1",
        "COMMIT",
        "ATTACH 'b.db' AS b",
        "PRAGMA journal_mode=DELETE",
        "PRAGMA wal_checkpoint",
        "VACUUM",
    ],
)
async def test_sql_that_writes_is_refused(path: Path, statement: str) -> None:
    for read_only in (True, False):
        async with pelton.open(path, read_only=read_only) as jet, jet.read() as view:
            with pytest.raises(pelton.SqlError):
                await view.sql(statement)
            assert await view.sql("SELECT name FROM streams WHERE name='orders'") == [("orders",)]


async def test_a_mistake_in_sql_is_told(jet: pelton.Jet) -> None:
    async with jet.read() as view:
        with pytest.raises(pelton.SqlError, match="nothing"):
            await view.sql("SELECT * FROM nothing")
        assert await view.sql("PRAGMA table_list('streams')")
    with pytest.raises(pelton.TransactionError):
        await view.sql("SELECT 1")
    with pytest.raises(pelton.TransactionError):
        async with view:
            pass


async def test_a_snapshot_of_a_file_at_rest_ends_when_it_is_opened(path: Path, jet: pelton.Jet) -> None:
    async with jet.read() as view:
        assert await view.sql("SELECT count(*) FROM streams") == [(3,)]
        async with pelton.open(path):
            with pytest.raises(pelton.StoreBusyError):
                await view.sql("SELECT count(*) FROM streams")


async def test_a_store_in_memory_is_read_as_of_the_beginning_of_the_block() -> None:
    count = "SELECT count(*) FROM streams"
    async with pelton.open("memory:") as jet:
        await jet.create_stream("a")
        async with jet.read() as view:
            await jet.create_stream("b")
            assert await view.sql(count) == [(1,)]
            with pytest.raises(pelton.SqlForbiddenError):
                await view.sql("DELETE FROM streams")
        async with jet.read() as view:
            assert await view.sql(count) == [(2,)]


async def test_a_read_of_a_store_in_memory_waits_for_its_writer() -> None:
    async with pelton.open("memory:") as jet:
        await jet.create_stream("a")
        is_read = asyncio.Event()

        async def read() -> list[tuple[object, ...]]:
            async with jet.read() as view:
                is_read.set()
                return await view.sql("SELECT x FROM mine")

        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE mine (x)")
            reading = asyncio.ensure_future(read())
            await asyncio.sleep(0)
            await tx.sql("INSERT INTO mine VALUES (7)")
            assert not is_read.is_set()
            with pytest.raises(pelton.SnapshotTimeoutError):
                async with jet.read(timeout=0.01):
                    pass
        assert await reading == [(7,)]


async def _delete(jet: pelton.Jet) -> None:
    await jet.delete_stream("orders")


async def _consume(jet: pelton.Jet) -> None:
    await (await (await jet.stream("orders")).consumer("worker")).fetch(1, timeout=1)


async def _make_consumer(jet: pelton.Jet) -> None:
    await (await jet.stream("orders")).create_consumer(durable_name="third")


async def _transact(jet: pelton.Jet) -> None:
    async with jet.transaction() as tx:
        await tx.publish("orders.1", b"x")


async def _put(jet: pelton.Jet) -> None:
    await (await jet.bucket("settings")).put("colour", b"green")


async def _lock(jet: pelton.Jet) -> None:
    await jet.lock("car1").acquire(timeout=1)


WRITES: list[Callable[[pelton.Jet], Awaitable[object]]] = [
    lambda jet: jet.create_stream("new", subjects=["new"]),
    lambda jet: jet.publish("orders.1", b"x"),
    lambda jet: jet.publish_batch([("orders.1", b"x")]),
    lambda jet: jet.publish_atomic([("orders.1", b"x")]),
    lambda jet: jet.subscribe("orders.>"),
    lambda jet: jet.backend.send("orders.1", b"x"),
    lambda jet: jet.rekey("key"),
    lambda jet: jet.backup("b.pelton"),
    lambda jet: jet.restore("b.pelton"),
    lambda jet: jet.queue("garage"),
    _delete,
    _consume,
    _make_consumer,
    _transact,
    _put,
    _lock,
]


@pytest.mark.parametrize("write", WRITES)
async def test_every_write_raises_the_same_error(
    path: Path, jet: pelton.Jet, write: Callable[[pelton.Jet], Awaitable[object]]
) -> None:
    with pytest.raises(pelton.StoreReadOnlyError, match="read_only=True"):
        await write(jet)
    assert beside(path) == FILES


async def test_what_has_expired_is_not_read(tmp_path: Path) -> None:
    runtime = manual_runtime()
    clock = runtime.clock
    path = tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet:
        for direct in (True, False):
            await jet.create_stream(f"d{direct}", subjects=[f"d{direct}.>"], allow_direct=direct, max_age=60)
            await jet.publish(f"d{direct}.a", b"old")
        bucket = await jet.create_bucket("b", ttl=60, limit_marker_ttl=60)
        await bucket.put("old", b"x")
        clock.advance(50)
        for direct in (True, False):
            await jet.publish(f"d{direct}.b", b"young")
        await bucket.create("young", b"x")
        await bucket.create("short", b"x", ttl=5)
    clock.advance(20)
    async with pelton.open(path, read_only=True, runtime=runtime) as jet:
        for direct in (True, False):
            stream = await jet.stream(f"d{direct}")
            assert (await stream.get_next_message(f"d{direct}.>")).data == b"young"
            for missing in (stream.get_message(1), stream.get_last_message(f"d{direct}.a")):
                with pytest.raises(pelton.MessageNotFoundError):
                    await missing
        assert [one.data for one in await (await jet.stream("dTrue")).get_messages(1)] == [b"young"]
        bucket = await jet.bucket("b")
        assert [key async for key in bucket.keys()] == ["young"]  # noqa: SIM118
        for key in ("old", "short"):
            with pytest.raises(pelton.BucketKeyNotFoundError):
                await bucket.get(key)


async def test_consumers_that_were_idle_for_too_long_are_not_listed(tmp_path: Path) -> None:
    runtime = manual_runtime()
    clock = runtime.clock
    path = tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("s", subjects=["s"])
        await stream.create_consumer(durable_name="stays")
        await stream.create_consumer(name="goes", inactive_threshold=10)
    clock.advance(20)
    async with pelton.open(path, read_only=True, runtime=runtime) as jet:
        stream = await jet.stream("s")
        assert await stream.consumer_names() == ["stays"]
        assert (await stream.info()).state.consumer_count == 1
        with pytest.raises(pelton.ConsumerNotFoundError):
            await stream.consumer("goes")


async def test_removed_messages_do_not_count_as_pending(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.*"])
        for number in range(10):
            await jet.publish(f"s.{number % 2}", b"x")
        plain = await stream.create_consumer(durable_name="plain")
        keyed = await stream.create_consumer(durable_name="keyed", max_ack_pending_per_subject=1)
        await plain.fetch(3)
        await keyed.fetch(1)
        await stream.purge(keep=1)
    async with pelton.open(path, read_only=True) as jet:
        stream = await jet.stream("s")
        seen = {name: await (await stream.consumer(name)).info() for name in ("plain", "keyed")}
    async with pelton.open(path) as jet:
        stream = await jet.stream("s")
        for name, info in seen.items():
            true = await (await stream.consumer(name)).info()
            assert (info.num_pending, info.num_ack_pending) == (true.num_pending, true.num_ack_pending), name


async def test_a_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(pelton.StoreSettingsError, match="no such file"):
        await pelton.open(tmp_path / "b.pelton", read_only=True)
    assert not os.listdir(tmp_path)


async def test_other_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "b.pelton").write_bytes(b"no store at all" * 1000)
    (tmp_path / "c.pelton").write_bytes(b"")
    with pytest.raises(pelton.NotAStoreError):
        await pelton.open(tmp_path / "b.pelton", read_only=True)
    with pytest.raises(pelton.NotAStoreError, match="an empty file"):
        await pelton.open(tmp_path / "c.pelton", read_only=True)
    assert beside(tmp_path / "b.pelton") == ["b.pelton", "c.pelton"]


async def test_an_encrypted_store_needs_its_key(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="secret") as jet:
        await jet.create_stream("s", subjects=["s"])
        async with pelton.open(path, key="secret", read_only=True) as look:
            assert await look.stream_names() == ["s"]
    async with pelton.open(path, key="secret", read_only=True) as look:
        assert await look.stream_names() == ["s"]
    for wrong in ({}, {"key": "other"}):
        with pytest.raises(pelton.StoreKeyError):
            await pelton.open(path, read_only=True, **wrong)


async def test_options_of_writers_are_refused(path: Path) -> None:
    for option in ({"sync": "off"}, {"mode": 0o660}, {"busy_timeout": 1}):
        with pytest.raises(pelton.ConfigError, match="leave them out"):
            pelton.open(path, read_only=True, **option)
    for address in ("memory:", "nats://localhost"):
        with pytest.raises(pelton.ConfigError):
            pelton.open(address, read_only=True)
    with pytest.raises(pelton.ConfigError):
        pelton.open(path, read_only="yes")  # type: ignore[arg-type]


async def test_a_log_without_its_index_is_read(path: Path, tmp_path: Path) -> None:
    """As a copy has it, or a machine that lost power with the folder's last changes."""
    copy = tmp_path / "copy" / "a.pelton"
    copy.parent.mkdir()
    async with pelton.open(path) as writer:
        await writer.publish("orders.9", b"in the log")
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    async with pelton.open(copy, read_only=True) as jet:
        assert (await (await jet.stream("orders")).get_last_message("orders.9")).data == b"in the log"
        assert beside(copy) == ["a.pelton", "a.pelton-wal"]
    assert beside(copy) == ["a.pelton", "a.pelton-wal"]


_KILLED = """
import os, pelton, sys
jet = pelton.sync.open(sys.argv[1])
jet.publish("orders.9", b"in the log")
os._exit(9)
"""


async def test_what_a_killed_process_left_is_read(path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    left = beside(path)
    assert "a.pelton-shm" in left
    async with pelton.open(path, read_only=True) as jet:
        assert (await (await jet.stream("orders")).get_last_message("orders.9")).data == b"in the log"
    assert beside(path) == left
    async with pelton.open(path) as jet:
        assert (await (await jet.stream("orders")).get_last_message("orders.9")).data == b"in the log"
    assert beside(path) == FILES


_ON_A_READ_ONLY_FILE_SYSTEM = """
import os, subprocess, sys
folder = sys.argv[1]
subprocess.run(["mount", "--bind", folder, folder], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
import pelton
with pelton.sync.open(folder + "/a.pelton", read_only=True) as jet:
    print(jet.stream("orders").info().state.messages)
    with jet.read() as view:
        print(view.sql("SELECT count(*) FROM streams")[0][0])
try:
    pelton.sync.open(folder + "/a.pelton")
except pelton.StoreReadOnlyError as error:
    print("read_only=True" in str(error))
"""


def _can_mount() -> bool:
    try:
        done = subprocess.run(["unshare", "-rm", "mount", "--bind", "/tmp", "/tmp"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(sys.platform != "linux" or not _can_mount(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize("left", ["closed", "killed", "no index", "open"])
async def test_a_read_only_file_system_will_do(path: Path, left: str) -> None:
    writer = await pelton.open(path) if left == "open" else None
    if left in ("killed", "no index"):
        subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    if left == "no index":
        (path.parent / "a.pelton-shm").unlink()
    files = beside(path)
    command = ["unshare", "-rm", sys.executable, "-c", _ON_A_READ_ONLY_FILE_SYSTEM, str(path.parent)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    messages = 6 if left in ("killed", "no index") else 5
    assert done.stdout.split() == [str(messages), "3", "True"], done.stderr
    assert beside(path) == files
    if writer is not None:
        await writer.publish("orders.1", b"x")
        await writer.close()


async def test_another_name_of_an_open_file_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.pelton"
    async with pelton.open(path):
        os.link(path, other)
        with pytest.raises(pelton.StoreSettingsError):
            await pelton.open(other, read_only=True)
    async with pelton.open(path) as jet:
        assert await jet.stream_names()


async def test_a_reader_does_not_end_the_locks_of_its_process(path: Path) -> None:
    """Closing a descriptor of a file drops all POSIX locks that the process has on it."""
    program = "import pelton, sys; print(pelton.compact(sys.argv[1]))"
    async with pelton.open(path) as writer:
        for _ in range(3):
            async with pelton.open(path, read_only=True) as jet:
                await jet.stream_names()
        command = [sys.executable, "-c", program, str(path)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert "StoreBusyError" in done.stderr
        await writer.publish("orders.1", b"x")


async def test_a_closed_one_is_closed(path: Path) -> None:
    jet = await pelton.open(path, read_only=True)
    other = await jet.clone()
    await jet.close()
    await jet.close()
    with pytest.raises(pelton.StoreClosedError):
        await jet.stream_names()
    with pytest.raises(pelton.StoreClosedError):
        await jet.publish("orders.1", b"x")
    assert await other.stream_names()
    await other.close()


def test_the_blocking_face_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s"])
    with pelton.sync.open(path, read_only=True) as jet:
        assert jet.stream_names() == ["s"]
        with jet.read() as view:
            assert view.sql("SELECT name FROM streams") == [("s",)]
        with pytest.raises(pelton.StoreReadOnlyError):
            jet.publish("s", b"x")


async def test_another_event_loop_and_a_forked_child_are_refused(path: Path, jet: pelton.Jet) -> None:
    def elsewhere() -> None:
        with pytest.raises(pelton.WrongLoopError):
            asyncio.run(jet.stream_names())

    await asyncio.to_thread(elsewhere)
    if not hasattr(os, "fork"):
        return
    child = os.fork()
    if not child:
        try:
            jet.backend._view.door.check()  # type: ignore[attr-defined]
        except pelton.StoreForkedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert await jet.stream_names()


async def test_a_store_that_is_replaced_is_read_where_it_is(path: Path, jet: pelton.Jet, tmp_path: Path) -> None:
    other = tmp_path / "b.pelton"
    async with pelton.open(other) as writer:
        await writer.create_stream("new", subjects=["new"])
    os.replace(other, path)
    assert await jet.stream_names() == ["new"]
    path.unlink()
    with pytest.raises(pelton.StoreSettingsError, match="no such file"):
        await jet.stream_names()


async def test_a_store_that_is_opened_while_it_is_opened_to_be_read_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pelton.storage import read_only

    original, writers = read_only.check_owner, []

    def torn(connection: Any, name: str) -> None:
        if not writers:
            writers.append(pelton.sync.open(path))
            raise read_only.Fault("foreign", name, "a page that another process has just written")
        original(connection, name)

    monkeypatch.setattr(read_only, "check_owner", torn)
    async with pelton.open(path, read_only=True) as jet:
        assert "orders" in await jet.stream_names()
    writers[0].close()
