"""Many publishes in one round of the loop are stored by columns, and behave as if each were stored by itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import NoStreamForSubjectError, Outgoing, PubAck
from pelton.engine.salvage import recount
from pelton.sourcing import link

_MANY = 40


async def _stored(jet: pelton.Jet) -> list[tuple[int, str, bytes]]:
    consumer = await (await jet.stream("s")).create_consumer(ack_policy="none")
    found = await consumer.fetch(1000, no_wait=True)
    return [(one.metadata.stream_seq, one.subject, one.data) for one in found]


@pytest.mark.parametrize("subjects", [1, 3, _MANY])
async def test_messages_of_many_callers_are_stored_in_order(tmp_path: Path, subjects: int) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        for start in (0, _MANY):
            names = [f"s.{'é' * (n % 2)}{n % subjects}" for n in range(_MANY)]
            acks = await asyncio.gather(*(jet.publish(name, b"%d" % n) for n, name in enumerate(names)))
            assert acks == [PubAck("s", start + n + 1) for n in range(_MANY)]
        found = await _stored(jet)
        assert found == [(n + 1, names[n % _MANY], b"%d" % (n % _MANY)) for n in range(2 * _MANY)]
        state = (await stream.info()).state
        assert (state.messages, state.num_subjects) == (2 * _MANY, len(set(names)))
    assert recount(str(path)) == []


async def test_one_that_is_refused_or_given_up_does_not_disturb_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await jet.publish("s.a", b"first", msg_id="known")
        plain: list[Any] = [jet.publish("s.a", b"%d" % n) for n in range(_MANY)]
        calls = [*plain[:5], jet.publish("nowhere"), *plain[5:10], jet.publish("s.a", b"again", msg_id="known")]
        calls += [*plain[10:15], jet.publish("s.a", b"headers", headers={"A": "b"}), *plain[15:]]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
        tasks[-1].cancel()
        found: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[5], NoStreamForSubjectError)
        assert (found[11].seq, found[11].duplicate) == (1, True)
        assert isinstance(found[-1], asyncio.CancelledError)
        acks = [one for n, one in enumerate(found[:-1]) if n not in (5, 11)]
        assert [ack.seq for ack in acks] == list(range(2, 2 + _MANY))
        assert [data for _, _, data in await _stored(jet)] == [
            b"first",
            *(b"%d" % n for n in range(15)),
            b"headers",
            *(b"%d" % n for n in range(15, _MANY - 1)),
        ]
    assert recount(str(path)) == []


async def test_batches_and_single_messages_keep_their_order(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        batch = [("s.b", b"batch")] * 10
        singles = [jet.publish("s.a", b"1") for _ in range(10)]
        last = [jet.publish("s.a", b"2") for _ in range(10)]
        found: list[Any] = await asyncio.gather(*singles, jet.publish_batch(batch), *last)
        seqs = [ack.seq for each in found for ack in (each if isinstance(each, list) else [each])]
        assert seqs == list(range(1, 31))
        assert [data for _, _, data in await _stored(jet)] == [b"1"] * 10 + [b"batch"] * 10 + [b"2"] * 10


async def test_subscribers_and_limits_apply_to_messages_stored_by_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], max_msgs=15)
        async with await jet.subscribe("s.>") as subscription:
            await asyncio.gather(*(jet.publish("s.a", b"%d" % n) for n in range(_MANY)))
            heard = [await subscription.next(timeout=60) for _ in range(_MANY)]
        assert [one.data for one in heard if one is not None] == [b"%d" % n for n in range(_MANY)]
        state = (await stream.info()).state
        assert (state.messages, state.first_seq, state.last_seq) == (15, _MANY - 14, _MANY)
    assert recount(str(path)) == []


async def test_an_empty_header_block_is_kept(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        messages = [Outgoing("s.a", b"", b"NATS/1.0\r\n\r\n" if n == 7 else None) for n in range(_MANY)]
        acks = await jet.backend.publish_batch(messages)
        assert [ack.seq for ack in acks] == list(range(1, _MANY + 1))
        assert (await stream.get_message(8)).hdrs == b"NATS/1.0\r\n\r\n"


async def test_a_transaction_rolls_back_messages_stored_by_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        async with jet.transaction() as tx:
            assert [ack.seq for ack in await tx.publish_batch([("s.a", b"1")] * 20)] == list(range(1, 21))
            with suppress(ZeroDivisionError):
                async with tx.savepoint():
                    await tx.publish_batch([("s.b", b"2")] * 20)
                    raise ZeroDivisionError
            await tx.publish_batch([("s.c", b"3")] * 20)
        assert [(seq, subject) for seq, subject, _ in await _stored(jet)] == [
            (n, "s.a" if n <= 20 else "s.c") for n in range(1, 41)
        ]
    assert recount(str(path)) == []


async def test_transactions_take_their_turns_in_order(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("s", subjects=["s.>"])

        async def one(n: int) -> None:
            async with jet.transaction() as tx:
                await tx.publish("s.a", b"%d" % n)
                await asyncio.sleep(0)

        await asyncio.gather(*map(one, range(20)))
        assert [data for _, _, data in await _stored(jet)] == [b"%d" % n for n in range(20)]


async def test_none_is_lost_beside_the_work_that_its_commit_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that leaves messages for a source stages its catch-up: the publish has run, and nobody may join it."""
    monkeypatch.setattr(link, "_AT_ONCE", 1)
    monkeypatch.setattr(link, "_CHUNK", 1)
    async with pelton.open("memory:") as jet:
        await jet.create_stream("origin")
        await jet.publish_batch([("origin", b"")] * 60)
        await jet.create_stream("copy", sources=[{"name": "origin"}])
        for _ in range(30):
            async with asyncio.timeout(20):
                await asyncio.gather(*(jet.publish("origin", b"x") for _ in range(3)))
