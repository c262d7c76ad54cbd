"""Acks across processes and restarts: any process may ack a delivery, and late acks are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import AckKind, AckOp, AckRejectedError
from pelton.engine.salvage import recount
from pelton.testing import ManualRuntime
from tests.storage.processes import Child, hear_in_child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pelton"


@pytest.fixture
async def store(path: Path, runtime: ManualRuntime) -> AsyncIterator[pelton.Jet]:
    """Three messages in a work queue, and its consumer."""
    async with pelton.open(path, runtime=runtime) as jet:
        work = await jet.create_stream("work", subjects=["work.*"], retention="workqueue")
        await work.create_consumer(durable_name="c", ack_wait=10)
        await jet.publish_batch([(f"work.{name}", b"") for name in "abc"])
        yield jet


async def taken(jet: pelton.Jet, count: int = 10) -> list[pelton.Message]:
    return await (await (await jet.stream("work")).consumer("c")).fetch(count, no_wait=True)


async def left(jet: pelton.Jet) -> tuple[int, int, int]:
    """Messages, awaiting an ack, not delivered."""
    stream = await jet.stream("work")
    info = await (await stream.consumer("c")).info()
    return (await stream.info()).state.messages, info.num_ack_pending, info.num_pending


def op(message: pelton.Message, kind: AckKind = "ack") -> AckOp:
    told = message.metadata
    return AckOp(kind=kind, seq=told.stream_seq, consumer_seq=told.consumer_seq, token=told.token)


async def answered(jet: pelton.Jet, *ops: AckOp) -> list[bool]:
    """Whether each ack counts; one that does not raises AckRejectedError, and nothing else."""
    answers = await jet.backend.ack("work", "c", ops)
    assert all(answer is None or isinstance(answer, AckRejectedError) for answer in answers)
    return [answer is None for answer in answers]


@pytest.mark.parametrize("kind", ["ack", "term", "nak", "progress"])
async def test_after_a_restart_what_was_given_is_answered(
    store: pelton.Jet, path: Path, runtime: ManualRuntime, kind: AckKind
) -> None:
    message, *_ = await taken(store, 1)
    await store.close()
    async with pelton.open(path, runtime=runtime) as jet:
        assert await left(jet) == (3, 1, 2)
        assert await answered(jet, op(message, kind)) == [True]
        settles = kind in ("ack", "term")
        assert await left(jet) == ((2, 0, 2) if settles else (3, 1, 2))
        assert await answered(jet, op(message)) == [not settles]
    assert recount(str(path)) == []


async def test_a_handle_on_a_closed_store_says_so_and_its_message_comes_again(
    store: pelton.Jet, path: Path, runtime: ManualRuntime
) -> None:
    message, *_ = await taken(store, 1)
    await store.close()
    with pytest.raises(pelton.StoreClosedError):
        await message.ack()
    runtime.clock.advance(10)
    async with pelton.open(path, runtime=runtime) as jet:
        again, *_ = await taken(jet)
        assert (again.metadata.stream_seq, again.metadata.num_delivered) == (1, 2)
        assert again.metadata.token > message.metadata.token
        assert await answered(jet, op(message), op(again)) == [False, True]


async def test_one_opener_answers_for_what_another_was_given(
    store: pelton.Jet, path: Path, runtime: ManualRuntime
) -> None:
    messages = await taken(store)
    async with pelton.open(path, runtime=runtime) as other:
        assert await answered(other, *map(op, messages[:2])) == [True, True]
        with pytest.raises(AckRejectedError):
            await messages[0].ack()
        await messages[2].ack()
        assert await left(other) == (0, 0, 0)
    assert recount(str(path)) == []


@pytest.mark.parametrize("kind", ["ack", "term", "nak", "progress"])
async def test_of_two_holders_only_the_last_one_counts(
    store: pelton.Jet, path: Path, runtime: ManualRuntime, kind: AckKind
) -> None:
    early, *_ = await taken(store, 1)
    runtime.clock.advance(10)
    async with pelton.open(path, runtime=runtime) as other:
        late, *_ = await taken(other, 1)
        before = await left(other)
        assert await answered(store, op(early, kind)) == [False]
        assert await left(store) == before
        assert await answered(store, op(late)) == [True]
        assert await answered(other, op(late), op(early)) == [False, False]
        assert await left(store) == (2, 0, 2)


async def test_late_counts_while_nobody_else_was_given_it(store: pelton.Jet, runtime: ManualRuntime) -> None:
    message, *_ = await taken(store, 1)
    runtime.clock.advance(1000)
    assert await answered(store, op(message), op(message)) == [True, False]
    assert await left(store) == (2, 0, 2)


async def test_two_processes_that_ack_at_once_count_once(store: pelton.Jet, path: Path, runtime: ManualRuntime) -> None:
    messages = await taken(store)
    async with pelton.open(path, runtime=runtime) as other:
        ops = [op(message) for message in messages]
        calls = [answered(jet, one) for one in ops for jet in (store, other)]
        found = await asyncio.gather(*calls)
        assert [sorted(pair) for pair in zip(found[::2], found[1::2], strict=True)] == [[[False], [True]]] * 3
        assert await left(other) == (0, 0, 0)


async def test_of_a_consumer_that_was_reset_no_old_ack_counts(store: pelton.Jet) -> None:
    """Deliveries are numbered from 1 again: their fencing tokens tell earlier ones from later ones."""
    old = await taken(store, 2)
    await (await (await store.stream("work")).consumer("c")).reset()
    new = await taken(store, 2)
    assert [(m.metadata.stream_seq, m.metadata.consumer_seq) for m in new] == [(1, 1), (2, 2)]
    assert max(m.metadata.token for m in old) < min(m.metadata.token for m in new)
    assert await answered(store, *map(op, old), *map(op, new)) == [False, False, True, True]


async def test_an_old_ack_counts_for_nothing_that_a_consumer_made_again_has_not_delivered(store: pelton.Jet) -> None:
    old, *_ = await taken(store, 1)
    stream = await store.stream("work")
    await stream.delete_consumer("c")
    with pytest.raises(pelton.ConsumerNotFoundError):
        await old.ack()
    await stream.create_consumer(durable_name="c", ack_wait=10)
    assert await answered(store, op(old)) == [False]


async def _hold(pipe: Connection, path: Path) -> None:
    """Take one, report it, and ack it on request."""
    async with pelton.open(path) as jet:
        (message,) = await (await (await jet.stream("work")).consumer("c")).fetch(1)
        pipe.send((message.metadata.stream_seq, message.metadata.consumer_seq))
        await hear_in_child(pipe)
        try:
            await message.ack()
        except AckRejectedError as error:
            pipe.send(error.reason)
        else:
            pipe.send("counts")


async def test_what_a_process_that_was_killed_had_in_hand_may_be_answered_by_another(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        work = await jet.create_stream("work", subjects=["work.*"], retention="workqueue")
        await work.create_consumer(durable_name="c", ack_wait=3600)
        await jet.publish_batch([("work.a", b""), ("work.b", b"")])
        with Child(_hold, path) as doomed, Child(_hold, path) as slow:
            held: dict[Any, Child] = {await child.heard(): child for child in (doomed, slow)}
            doomed.kill()
            for seq, number in held:
                assert await answered(jet, AckOp(seq=seq, consumer_seq=number)) == [True]
            slow.say("now")
            assert (await slow.heard()).startswith("it is settled already")
        assert await left(jet) == (0, 0, 0)
    assert recount(str(path)) == []
