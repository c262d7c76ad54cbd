"""Transactions that are held open: atomic, invisible until the commit, bounded, and no obstacle afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import (
    AckRejectedError,
    ConfigError,
    ExpectationError,
    NoStreamForSubjectError,
    Outgoing,
    SqlConstraintError,
    SqlError,
    SqlForbiddenError,
    StoreBusyError,
    StoreClosedError,
    StoreFailedError,
    TransactionError,
    TransactionTimeoutError,
)
from pelton.engine.salvage import recount
from pelton.testing import manual_runtime
from tests.kit.faults import FaultySync
from tests.storage.stores import open_engine


@pytest.fixture(params=["file", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "a.pelton") if request.param == "file" else "memory:"


@pytest.fixture
async def jet(address: str) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE orders(id INTEGER PRIMARY KEY, what TEXT UNIQUE)")
        yield jet
    if address != "memory:":
        assert recount(address) == []


async def orders(jet: pelton.Jet) -> list[str]:
    async with jet.transaction() as tx:
        return [what for (what,) in await tx.sql("SELECT what FROM orders ORDER BY id")]


async def payloads(jet: pelton.Jet, stream: str = "s") -> list[bytes]:
    handle = await jet.stream(stream)
    state = (await handle.info()).state
    return [(await handle.get_message(seq)).data for seq in range(max(state.first_seq, 1), state.last_seq + 1)]


# --- together or not at all -----------------------------------------------------------------------


async def test_acks_of_several_consumers_in_one_call(jet: pelton.Jet) -> None:
    stream = await jet.stream("s")
    await jet.publish_batch([("s.in", b"1"), ("s.in", b"2")])
    consumers = [await stream.create_consumer(durable_name=name) for name in ("a", "b")]
    ones, others = [await consumer.fetch(2) for consumer in consumers]
    async with jet.transaction() as tx:
        await tx.ack(ones[0], others[0], ones[1])
    assert [message.is_settled for message in (*ones, *others)] == [True, True, True, False]
    assert [(await consumer.info()).num_ack_pending for consumer in consumers] == [0, 1]


async def test_messages_acks_and_rows_take_effect_together(jet: pelton.Jet) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("s.in", b"1"), ("s.in", b"2")])
    messages = await consumer.fetch(2)
    async with jet.transaction() as tx:
        ack = await tx.publish("s.out", b"3")
        await tx.ack(*messages)
        assert await tx.sql("INSERT INTO orders(what) VALUES(?) RETURNING id, what", ("paint",)) == [(1, "paint")]
        assert ack.seq == 3
    assert (await payloads(jet), await orders(jet)) == ([b"1", b"2", b"3"], ["paint"])
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 2)


async def test_a_block_that_raises_leaves_nothing(jet: pelton.Jet) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    await jet.publish("s.in", b"1")
    messages = await consumer.fetch(1)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.publish_batch([("s.out", b"2"), ("s.out", b"3", {"Nats-Msg-Id": "x"})])
            await tx.ack(*messages)
            await tx.sql("INSERT INTO orders(what) VALUES('paint')")
            await tx.sql("CREATE TABLE gone(x)")
            1 / 0  # noqa: B018  # it raises
    assert (await payloads(jet), await orders(jet)) == ([b"1"], [])
    assert (await consumer.info()).num_ack_pending == 1
    await messages[0].ack()
    ack = await jet.publish("s.out", b"2", msg_id="x")
    assert (ack.seq, ack.duplicate) == (2, False)


async def test_a_block_that_is_cancelled_leaves_nothing(jet: pelton.Jet) -> None:
    inside = asyncio.Event()

    async def hang() -> None:
        async with jet.transaction() as tx:
            await tx.publish("s.x")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await jet.publish("s.y", b"y")).seq == 1


async def test_an_empty_block_takes_no_writer(jet: pelton.Jet) -> None:
    async with jet.transaction(), jet.transaction():
        pass


# --- what others see ------------------------------------------------------------------------------


async def in_task(work: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.create_task(work)


async def test_readers_of_a_file_see_the_store_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, pelton.open(path) as other:
        stream = await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
        await jet.publish("s.x", b"before")
        elsewhere = await other.stream("s")
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"after")
            assert (await stream.get_last_message("s.x")).data == b"after", "its own task"
            assert (await stream.info()).state.messages == 2
            for handle in (stream, elsewhere):
                assert (await in_task(handle.get_last_message("s.x"))).data == b"before"
                assert (await in_task(handle.info())).state.messages == 1
        assert (await in_task(stream.get_last_message("s.x"))).data == b"after"
        assert (await elsewhere.get_last_message("s.x")).data == b"after"


async def test_readers_of_a_memory_store_wait_for_its_end() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"after")
            assert (await stream.info()).state.messages == 1
            reads = [asyncio.create_task(stream.get_last_message("s.x")), asyncio.create_task(stream.info())]
            for _ in range(5):
                await asyncio.sleep(0)
            assert not any(read.done() for read in reads)
        assert ((await reads[0]).data, (await reads[1]).state.messages) == (b"after", 1)


@pytest.mark.parametrize("rolled_back", [False, True])
async def test_readers_of_a_clone_of_a_memory_store_wait_without_blocking_the_loop(rolled_back: bool) -> None:
    async with pelton.open("memory:") as jet, await jet.clone() as clone:
        await jet.create_stream("s", subjects=["s"], allow_direct=True)
        stream = await clone.stream("s")
        consumer = await stream.create_consumer(durable_name="c")
        pull = asyncio.create_task(consumer.fetch(1, timeout=60))
        with suppress(KeyError):
            async with jet.transaction(timeout=60) as tx:
                await tx.publish("s", b"a")
                info, direct = asyncio.create_task(stream.info()), asyncio.create_task(stream.get_last_message("s"))
                for _ in range(5):
                    # If one of them blocked the loop, this took ten seconds each time.
                    await asyncio.sleep(0.001)
                assert not info.done()
                assert not direct.done()
                if rolled_back:
                    raise KeyError
        assert (await info).state.messages == 1 - rolled_back
        assert (await asyncio.gather(direct, return_exceptions=True))[0] is not None
        if rolled_back:
            await clone.publish("s", b"a")
        assert [message.data for message in await pull] == [b"a"]


async def test_others_publishes_wait_and_are_not_in_it(jet: pelton.Jet) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.publish("s.mine", b"mine")
            theirs = [asyncio.create_task(jet.publish("s.theirs", b"%d" % n)) for n in range(3)]
            theirs.append(asyncio.create_task(jet.publish_batch([("s.theirs", b"3"), ("s.theirs", b"4")])))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not any(task.done() for task in theirs)
            1 / 0  # noqa: B018  # it raises
    await asyncio.gather(*theirs)
    assert await payloads(jet) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_waiting_pull_is_woken_by_the_commit_and_not_before(jet: pelton.Jet) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    pull = asyncio.create_task(consumer.fetch(1, timeout=20))
    for _ in range(5):
        await asyncio.sleep(0)
    async with jet.transaction() as tx:
        await tx.publish("s.x", b"1")
        for _ in range(5):
            await asyncio.sleep(0)
        assert not pull.done()
    assert [message.data for message in await pull] == [b"1"]


async def test_listeners_hear_of_it_after_the_commit_in_order(jet: pelton.Jet) -> None:
    await jet.create_stream("r", subjects=["r"], republish={"src": "r", "dest": "again"})
    async with await jet.subscribe("s.>") as heard, await jet.subscribe("again") as again:
        async with jet.transaction() as tx:
            await tx.publish("s.a", b"1")
            async with tx.savepoint():
                await tx.publish("s.b", b"2")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
                async with tx.savepoint():
                    await tx.publish("s.c", b"never")
                    await tx.publish("r", b"never")
                    1 / 0  # noqa: B018  # it raises
            await tx.publish("r", b"4")
            await tx.publish("s.d", b"3")
            assert await in_task(heard.next(timeout=0)) is None
        assert [(await heard.next(timeout=20)).data for _ in range(3)] == [b"1", b"2", b"3"]  # type: ignore[union-attr]  # it comes
        assert (await again.next(timeout=20)).data == b"4"  # type: ignore[union-attr]  # it comes
        assert await heard.next(timeout=0) is None


async def test_many_transactions_and_publishes_share_a_store(jet: pelton.Jet) -> None:
    async def transact(number: int) -> None:
        for step in range(10):
            async with jet.transaction(timeout=20) as tx:
                [(count,)] = await tx.sql("SELECT count(*) FROM orders")
                await asyncio.sleep(0)
                await tx.sql("INSERT INTO orders VALUES(?, ?)", (count, f"{number}.{step}"))
                await tx.publish("s.x", b"%d" % count)

    async def publish() -> None:
        for _ in range(30):
            await jet.publish("s.y", b"")

    await asyncio.gather(*(transact(number) for number in range(4)), publish(), publish())
    stored = await payloads(jet)
    assert [data for data in stored if data] == [b"%d" % n for n in range(40)]
    assert (len(stored), len(await orders(jet))) == (100, 40)


# --- refusals within it ---------------------------------------------------------------------------


async def test_what_is_refused_changes_nothing_and_the_block_goes_on(jet: pelton.Jet) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c", max_ack_pending=5)
    await jet.publish("s.x", b"0")
    [message] = await consumer.fetch(1)
    async with jet.transaction() as tx:
        with pytest.raises(NoStreamForSubjectError):
            await tx.publish("elsewhere")
        with pytest.raises(ExpectationError):
            await tx.publish("s.x", b"no", expected_last_seq=77)
        with pytest.raises(ExpectationError):
            await tx.publish_batch([("s.x", b"no"), ("s.x", b"no", {"Nats-Expected-Last-Sequence": "77"})])
        with pytest.raises(NoStreamForSubjectError):
            await tx.publish_batch([("s.x", b"no"), ("elsewhere", b"no")])
        await tx.ack(message)
        with pytest.raises(AckRejectedError):
            await tx.ack(message)
        with pytest.raises(pelton.ConsumerNotFoundError):
            await tx._port().ack("s", "nobody", [pelton.AckOp(kind="ack", seq=1, consumer_seq=1)])
        with pytest.raises(ConfigError, match="Nats-Batch"):
            await tx.publish("s.x", headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"})
        await tx.publish("s.x", b"1", expected_last_seq=1)
        assert (await tx.publish("s.x", b"2", msg_id="i")).seq == 3
        assert (await tx.publish("s.x", b"2", msg_id="i")).duplicate
    assert await payloads(jet) == [b"0", b"1", b"2"]
    assert (await consumer.info()).num_ack_pending == 0


async def test_acks_one_by_one_are_each_checked(jet: pelton.Jet) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    await jet.create_stream("out")
    await jet.publish_batch([("s.x", b"")] * 8)
    messages = await consumer.fetch(8)
    await messages[3].ack()
    async with jet.transaction() as tx:
        for place, message in enumerate(messages):
            if place == 3:
                with pytest.raises(AckRejectedError):
                    await tx.ack(message)
            elif place == 4:
                await tx.nak(message)
            else:
                await tx.ack(message)
            with pytest.raises(AckRejectedError):
                await tx.ack(messages[min(place, 2)])
            await tx.publish("out")
    assert (await consumer.info()).num_ack_pending == 1
    assert [message.delivered.seq for message in await consumer.fetch(8)] == [5]


async def test_a_nak_and_an_ack_after_it(jet: pelton.Jet) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    await jet.publish_batch([("s.x", b"0"), ("s.x", b"1"), ("s.x", b"2")])
    messages = await consumer.fetch(3)
    async with jet.transaction() as tx:
        await tx.nak(messages[0], messages[1])
        await tx.ack(messages[1])
        await tx.term(messages[2], reason="bad")
    assert [message.data for message in await consumer.fetch(3, no_wait=True)] == [b"0"]


@pytest.mark.parametrize("statement", ["INSERT INTO orders VALUES(1, 'b')", "INSERT INTO orders VALUES(2, 'a')"])
async def test_a_constraint_of_ones_own(jet: pelton.Jet, statement: str) -> None:
    async with jet.transaction() as tx:
        await tx.sql("INSERT INTO orders VALUES(1, 'a')")
        with pytest.raises(SqlConstraintError, match="UNIQUE"):
            await tx.sql(f"INSERT INTO orders VALUES(9, 'z'); {statement}")
        await tx.sql("INSERT INTO orders VALUES(:id, :what)", {"id": 3, "what": "c"})
    assert await orders(jet) == ["a", "c"]


async def test_sql_that_ends_the_transaction_itself(jet: pelton.Jet) -> None:
    await jet.publish("s.x", b"0")
    with pytest.raises(TransactionError, match="rolled back after an error: UNIQUE"):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"no")
            await tx.sql("INSERT INTO orders VALUES(1, 'a')")
            with pytest.raises(TransactionError):
                await tx.sql("INSERT OR ROLLBACK INTO orders VALUES(1, 'a')")
            with pytest.raises(TransactionError):
                await tx.publish("s.x", b"no")
    assert (await payloads(jet), await orders(jet)) == ([b"0"], [])


async def test_a_foreign_key_that_fails_at_the_commit(jet: pelton.Jet) -> None:
    async with jet.transaction() as tx:
        await tx.sql("CREATE TABLE lines(o REFERENCES orders(id) DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(SqlError):
            await tx.sql("CREATE TABLE now(o REFERENCES orders(id)); INSERT INTO now VALUES(7)")
    with pytest.raises(TransactionError, match="commit was refused: FOREIGN KEY"):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"no")
            await tx.sql("INSERT INTO lines VALUES(7)")
    assert await payloads(jet) == []
    async with jet.transaction() as tx:
        await tx.sql("INSERT INTO lines VALUES(7)")
        await tx.sql("INSERT INTO orders VALUES(7, 'late')")
    assert await orders(jet) == ["late"]


async def test_an_error_half_way_takes_all_along(jet: pelton.Jet) -> None:
    nothing: Any = None
    with pytest.raises(TransactionError, match="rolled back after an error"):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"no")
            with pytest.raises(TypeError):
                await tx._port().publish([Outgoing("s.x", nothing)])
    assert (await jet.publish("s.x", b"1")).seq == 1


# --- savepoints -----------------------------------------------------------------------------------


async def test_a_savepoint_is_undone_alone(jet: pelton.Jet) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    await jet.publish_batch([("s.x", b"0"), ("s.x", b"1")])
    first, second = await consumer.fetch(2)
    async with jet.transaction() as tx:
        await tx.ack(first)
        await tx.publish("s.x", b"2", msg_id="two")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
            async with tx.savepoint():
                await tx.ack(second)
                await tx.publish("s.x", b"no", msg_id="no")
                async with tx.savepoint():
                    await tx.sql("INSERT INTO orders VALUES(1, 'a')")
                1 / 0  # noqa: B018  # it raises
        async with tx.savepoint():
            await tx.sql("INSERT INTO orders VALUES(1, 'b')")
        assert (await tx.publish("s.x", b"3", msg_id="no")).seq == 4
        assert (await tx.publish("s.x", b"again", msg_id="two")).duplicate
    assert (await payloads(jet), await orders(jet)) == ([b"0", b"1", b"2", b"3"], ["b"])
    assert (await consumer.info()).num_ack_pending == 1
    await second.ack()


async def test_a_transaction_within_one_is_a_savepoint(jet: pelton.Jet) -> None:
    async def note(what: str, fail: bool) -> None:
        async with jet.transaction() as tx:
            await tx.sql("INSERT INTO orders(what) VALUES(?)", (what,))
            if fail:
                raise ZeroDivisionError

    async with jet.transaction() as tx:
        await note("a", False)
        with pytest.raises(ZeroDivisionError):
            await note("b", True)
        await tx.publish("s.x", b"0")
    assert (await orders(jet), await payloads(jet)) == (["a"], [b"0"])
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
        async with jet.transaction():
            await note("c", False)
            1 / 0  # noqa: B018  # it raises
    assert await orders(jet) == ["a"]


async def test_blocks_end_in_the_order_in_which_they_nest(jet: pelton.Jet) -> None:
    with pytest.raises(TransactionError, match="still open at its end"):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.publish("s.x")
            await tx.savepoint().__aenter__()
    assert (await jet.publish("s.x", b"0")).seq == 1


# --- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda jet, consumer: jet.publish("s.x"),
        lambda jet, consumer: jet.publish_batch([("s.x", b"")]),
        lambda jet, consumer: jet.publish_atomic([("s.x", b"")]),
        lambda jet, consumer: jet.create_stream("t"),
        lambda jet, consumer: jet.subscribe("t"),
        lambda jet, consumer: consumer.fetch(1),
        lambda jet, consumer: jet.backend.ack("s", "c", [pelton.AckOp(kind="ack", seq=1, consumer_seq=1)]),
    ],
)
async def test_writing_past_it_from_within_is_refused(jet: pelton.Jet, call: Callable[..., Any]) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    async with jet.transaction() as tx:
        for _ in range(2):
            with pytest.raises(TransactionError, match="inside its block only"):
                await call(jet, consumer)
            await tx.publish("s.x")


async def test_it_belongs_to_its_task_and_its_block(jet: pelton.Jet) -> None:
    transaction = jet.transaction()
    with pytest.raises(TransactionError, match="has not begun"):
        await transaction.publish("s.x")
    async with transaction as tx:
        await tx.publish("s.x")
        with pytest.raises(TransactionError, match="belongs to the task"):
            await in_task(tx.publish("s.x"))
        with pytest.raises(TransactionError, match="again for each block"):
            async with transaction:
                pass
    with pytest.raises(TransactionError, match="is over"):
        await tx.publish("s.x")
    assert len(await payloads(jet)) == 1


@pytest.mark.parametrize("timeout", [0, -1, 61, float("nan")])
def test_timeouts_that_cannot_be(timeout: float) -> None:
    async def open_it() -> None:
        async with pelton.open("memory:") as jet:
            with pytest.raises(ConfigError, match="timeout"):
                jet.transaction(timeout=timeout)

    asyncio.run(open_it())


# --- time -----------------------------------------------------------------------------------------


async def test_it_is_rolled_back_when_its_time_is_over(address: str) -> None:
    runtime = manual_runtime()
    async with pelton.open(address, runtime=runtime) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        with pytest.raises(TransactionTimeoutError, match=r"longer than 1 s.*timeout="):  # noqa: PT012  # the whole block raises
            async with jet.transaction() as tx:
                runtime.clock.advance(7)
                await tx.publish("s.x", b"no")
                theirs = asyncio.create_task(jet.publish("s.y", b"0"))
                await asyncio.sleep(0)
                runtime.clock.advance(1)
                # The writer is free again although the block hangs.
                assert (await theirs).seq == 1
                with pytest.raises(TransactionTimeoutError):
                    await tx.publish("s.x", b"no")
        async with jet.transaction(timeout=5) as tx:
            await tx.publish("s.x", b"1")
            runtime.clock.advance(4.9)
        assert await payloads(jet) == [b"0", b"1"]


async def test_sql_that_takes_for_ever_is_cut_off(address: str) -> None:
    async with pelton.open(address) as jet:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n"
        with pytest.raises(TransactionTimeoutError):  # noqa: PT012  # the whole block raises
            async with jet.transaction(timeout=0.02) as tx:
                await tx.sql("CREATE TABLE gone(x)")
                await tx.sql(endless)
        async with jet.transaction() as tx:
            with pytest.raises(SqlError, match="no such table"):
                await tx.sql("SELECT * FROM gone")


async def test_another_opener_that_keeps_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, pelton.open(path, busy_timeout=0.05) as other:
        await jet.create_stream("s", subjects=["s.>"])
        async with jet.transaction(timeout=20) as tx:
            await tx.publish("s.x", b"0")
            with pytest.raises(StoreBusyError):
                async with other.transaction() as late:
                    await late.publish("s.x")
            with pytest.raises(StoreBusyError):
                await other.publish("s.x")
        async with other.transaction() as late:
            assert (await late.publish("s.x", b"1")).seq == 2
    assert recount(str(path)) == []


# --- the end of the store -------------------------------------------------------------------------


async def test_closing_the_store_ends_it(address: str) -> None:
    jet = await pelton.open(address)
    await jet.create_stream("s", subjects=["s.>"])
    inside, waiting = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with jet.transaction() as tx:
            await tx.publish("s.x")
            inside.set()
            await waiting.wait()
            await tx.publish("s.x")

    async def queue_up() -> None:
        async with jet.transaction() as tx:
            await tx.publish("s.x")

    tasks = [asyncio.create_task(hold()), asyncio.create_task(queue_up())]
    await inside.wait()
    await jet.close()
    waiting.set()
    for task in tasks:
        with pytest.raises(StoreClosedError):
            await task
    with pytest.raises(StoreClosedError):
        async with jet.transaction():
            pass


async def test_a_sync_that_fails_acknowledges_no_commit(tmp_path: Path) -> None:
    sync = FaultySync()
    jet = open_engine(tmp_path / "a.pelton", sync_file=sync)
    await jet.create_stream("s", subjects=["s.>"])
    sync.broken = True
    with pytest.raises(StoreFailedError):
        async with jet.transaction() as tx:
            await tx.publish("s.x")
    with pytest.raises(StoreFailedError):
        async with jet.transaction() as tx:
            await tx.publish("s.x")
    await jet.close()


async def test_limits_and_deadlines_hold_within_it(address: str) -> None:
    runtime = manual_runtime()
    limits = pelton.AccountLimits(max_storage=400)
    async with pelton.open(address, runtime=runtime, limits=limits) as jet:
        await jet.create_stream("s", subjects=["s.>"], max_msgs=2, max_age=10)
        await jet.publish_batch([("s.x", b"0"), ("s.x", b"1")])
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"2")
            with pytest.raises(pelton.LimitError):
                await tx.publish("s.x", bytes(400))
        assert await payloads(jet) == [b"1", b"2"]
        runtime.clock.advance(11)
        async with jet.transaction() as tx:
            await tx.publish("s.x", b"3")
        assert await payloads(jet) == [b"3"]


async def test_forbidden_sql_is_told_by_its_own_error(jet: pelton.Jet) -> None:
    async with jet.transaction() as tx:
        with pytest.raises(SqlForbiddenError, match="streams"):
            await tx.sql("DELETE FROM streams")
        assert await tx.sql("SELECT name FROM streams") == [("s",)]
