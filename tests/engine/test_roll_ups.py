"""A roll-up of very many messages is removed in portions between which others can write; nobody reads it meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copyfile
from typing import cast

import pytest

import pelton
from pelton.engine.engine import Engine
from pelton.engine.salvage import recount
from pelton.streams import remover
from pelton.testing import manual_runtime

_OLD = 40
_SUB = {"Nats-Rollup": "sub"}


@pytest.fixture(autouse=True)
def _portions_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_MOST_REPLACED": 4, "_STEPS": 1, "_AT_ONCE": 2, "_LOOKED_AT": 8}.items():
        monkeypatch.setattr(remover, name, value)


@pytest.fixture
async def jet(tmp_path: Path) -> AsyncIterator[pelton.Jet]:
    # Time stands still: what is left waits for whoever asks.
    async with pelton.open(tmp_path / "s.pelton", runtime=manual_runtime()) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_direct=True, allow_rollup_hdrs=True, allow_msg_ttl=False)
        await jet.create_stream("t", subjects=["t"])
        await jet.publish_batch([(f"s.{n % 2}", b"old") for n in range(_OLD)])
        yield jet
    assert recount(str(tmp_path / "s.pelton")) == []


def rows(jet: pelton.Jet, subject: str = "s.1") -> int:
    engine = cast(Engine, jet.backend)
    table = engine.session.registry.stream("s").table.name
    return int(engine.session.db.value(f"SELECT count(*) FROM {table} WHERE subject=?", (subject,)))


async def stored(jet: pelton.Jet) -> list[int]:
    return [message.seq for message in await (await jet.stream("s")).get_messages(1000)]


_KEPT = [*range(1, _OLD, 2), _OLD + 1]


async def test_readers_wait_and_others_write_meanwhile(jet: pelton.Jet) -> None:
    assert (await jet.publish("s.1", b"new", headers=_SUB)).seq == _OLD + 1
    assert rows(jet) == _OLD // 2 + 1
    asking, published = asyncio.create_task(stored(jet)), 0
    while not asking.done():
        published += (await jet.publish("t", b"")).seq > 0
        await asyncio.sleep(0)
    assert await asking == _KEPT
    assert rows(jet) == 1
    assert published


async def test_each_way_of_reading_sees_only_what_is_left(jet: pelton.Jet) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(durable_name="c")
    mine = await stream.create_consumer(durable_name="mine", filter_subject="s.1")
    await jet.publish("s.1", b"new", headers=_SUB)
    with pytest.raises(pelton.MessageNotFoundError):
        await stream.get_message(2)
    await jet.publish_batch([("s.1", b"old")] * 10)
    await jet.publish("s.1", b"new", headers=_SUB)
    state = (await stream.info(subjects_filter=">")).state
    assert (state.messages, state.subjects) == (_OLD // 2 + 1, {"s.0": _OLD // 2, "s.1": 1})
    assert [message.delivered.seq for message in await mine.fetch(99, no_wait=True)] == [state.last_seq]
    assert len(await consumer.fetch(99, no_wait=True)) == _OLD // 2 + 1


async def test_a_background_without_readers_removes_it(tmp_path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(tmp_path / "b.pelton", runtime=runtime) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_rollup_hdrs=True)
        await jet.publish_batch([(f"s.{n % 2}", b"old") for n in range(_OLD)])
        await jet.publish("s.1", b"new", headers=_SUB)
        for _ in range(_OLD):
            runtime.clock.advance(1)
            await jet.publish("s.0", b"")
        assert rows(jet) == 1


async def test_publishers_go_on_meanwhile(jet: pelton.Jet) -> None:
    ack = await jet.publish("s.1", b"new", headers=_SUB)
    after = await jet.publish("s.1", b"next", expected_last_subject_seq=ack.seq, msg_id="a")
    assert rows(jet) > 2
    assert await stored(jet) == [*_KEPT, after.seq]


async def test_roll_ups_of_several_subjects_and_of_one_again(jet: pelton.Jet) -> None:
    await jet.publish("s.1", b"new", headers=_SUB)
    await jet.publish("s.0", b"new", headers=_SUB)
    await jet.publish_batch([("s.1", b"old")] * 10)
    last = await jet.publish("s.1", b"new", headers=_SUB)
    assert await stored(jet) == [_OLD + 2, last.seq]


async def test_a_crash_in_the_middle_is_made_up_for_at_the_next_opening(jet: pelton.Jet, tmp_path: Path) -> None:
    await jet.publish("s.1", b"new", headers=_SUB)
    await jet.publish("s.0", b"plain")
    assert 1 < rows(jet) < _OLD // 2 + 1
    for suffix in ("", "-wal"):
        copyfile(tmp_path / f"s.pelton{suffix}", tmp_path / f"crashed.pelton{suffix}")
    assert recount(str(tmp_path / "crashed.pelton")) == []
    async with pelton.open(tmp_path / "crashed.pelton") as crashed:
        assert await stored(crashed) == [*_KEPT, _OLD + 2]
    assert recount(str(tmp_path / "crashed.pelton")) == []


async def test_another_process_finishes_it(jet: pelton.Jet, tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "s.pelton", runtime=manual_runtime()) as other:
        assert len(await stored(other)) == _OLD
        await jet.publish("s.1", b"new", headers=_SUB)
        assert await stored(other) == _KEPT
        assert await stored(jet) == _KEPT


async def test_a_transaction_sees_nothing_of_it(jet: pelton.Jet) -> None:
    async with jet.transaction() as tx:
        await tx.publish("s.1", b"new", headers=_SUB)
        assert (await (await jet.stream("s")).info()).state.messages == _OLD // 2 + 1
    assert await stored(jet) == _KEPT


async def test_a_lower_limit_and_a_purge_go_after_it(jet: pelton.Jet) -> None:
    stream = await jet.stream("s")
    await jet.publish("s.1", b"new", headers=_SUB)
    assert await stream.purge(filter="s.0", keep=5) == _OLD // 2 - 5
    await jet.publish_batch([("s.1", b"old")] * 10)
    await jet.publish("s.1", b"new", headers=_SUB)
    await jet.update_stream("s", subjects=["s.>"], allow_direct=True, allow_rollup_hdrs=True, max_msgs=3)
    assert len(await stored(jet)) == 3


@pytest.mark.parametrize("kind", ["all", "sub"])
async def test_the_whole_stream_is_rolled_up_at_once(jet: pelton.Jet, kind: str) -> None:
    stream = await jet.stream("s")
    if kind == "sub":
        await stream.purge(filter="s.0")
    consumer = await stream.create_consumer(durable_name="c")
    ack = await jet.publish("s.1", b"new", headers={"Nats-Rollup": kind})
    assert (rows(jet, "s.0"), rows(jet)) == (0, 1)
    await jet.publish("s.1", b"next", expected_last_subject_seq=ack.seq)
    info = await stream.info(subjects_filter=">")
    assert (info.state.messages, info.state.first_seq, info.state.subjects) == (2, ack.seq, {"s.1": 2})
    assert [message.data for message in await consumer.fetch(9, no_wait=True)] == [b"new", b"next"]
