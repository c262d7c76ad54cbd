"""Batches that are stored together or not at all: beside others, in a rolled back group, and abandoned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pelton
from pelton.api import ApiError, PubAck
from pelton.engine.salvage import recount
from pelton.testing import manual_runtime
from tests.kit.faults import FaultySync
from tests.storage.stores import Unstorable, open_engine

STAGED = PubAck("", 0)


def part(batch: str, seq: int, commit: str = "", **more: str) -> dict[str, str]:
    named = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(seq), **more}
    return {**named, "Nats-Batch-Commit": commit} if commit else named


async def outcomes(*calls: Any) -> list[Any]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    return [
        (found.seq, found.count) if isinstance(found, PubAck) else getattr(found, "err_code", type(found))
        for found in results
    ]


async def test_a_refused_batch_leaves_its_neighbours_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], allow_atomic=True, max_msgs_per_subject=3)
        await jet.create_stream("told", subjects=["told"])
        wrong = {"Nats-Expected-Last-Subject-Sequence": "77"}
        found = await outcomes(
            jet.publish("s.1", b"one", msg_id="x"),
            jet.publish_atomic([("s.1", b"a", {"Nats-Msg-Id": "y"}), ("s.2", b"b", wrong)]),
            jet.publish("s.1", b"two"),
            jet.publish_atomic([("s.1", b"three"), ("s.2", b"four")]),
            jet.publish_atomic([("s.3", b"c"), ("s.4", b"d"), ("s.1", b"e", {"Nats-Msg-Id": "x"})]),
            jet.publish("s.2", b"five", msg_id="y"),
            jet.publish("told"),
        )
        assert found == [(1, 0), 10071, (2, 0), (4, 2), 10201, (5, 0), (1, 0)]
        state = (await stream.info(subjects_filter=">")).state
        assert state.subjects == {"s.1": 3, "s.2": 2}
        assert [(await stream.get_message(seq)).data for seq in range(1, 6)] == [
            b"one",
            b"two",
            b"three",
            b"four",
            b"five",
        ]
    assert recount(str(path)) == []


async def test_a_refused_batch_says_nothing_and_its_neighbours_do(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        said = {"src": "s.>", "dest": "said.>"}
        await jet.create_stream("s", subjects=["s.>"], allow_atomic=True, republish=said)
        heard = await jet.create_stream("said", subjects=["said.>"])
        wrong = {"Nats-Expected-Last-Sequence": "77"}
        await outcomes(
            jet.publish("s.1", b"one"),
            jet.publish_atomic([("s.2", b"never"), ("s.3", b"never", wrong)]),
            jet.publish_atomic([("s.4", b"two"), ("s.5", b"three")]),
        )
        info = await heard.info(subjects_filter=">")
        assert set(info.state.subjects) == {"said.1", "said.4", "said.5"}


async def test_open_batches_outlive_a_rolled_back_group(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_atomic=True)
        for round_ in range(3):
            batch = str(round_)
            assert await jet.publish("s.1", headers=part(batch, 1)) == STAGED
            found = await outcomes(
                jet.publish("s.1", headers=part(batch, 2)),
                jet.publish("s.1", headers=part("other", 2)),
                jet.publish("s.1", Unstorable()),
                jet.publish("s.1", headers=part(batch, 3)),
            )
            assert found == [(0, 0), 10176, TypeError, (0, 0)]
            found = await outcomes(jet.publish("s.2", Unstorable()), jet.publish("s.1", headers=part(batch, 4, "1")))
            assert found == [TypeError, (4 * round_ + 4, 4)]
    assert recount(str(path)) == []


async def test_a_commit_that_is_run_again_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], allow_atomic=True)
        await jet.publish("s.1", headers=part("x", 1))
        found = await outcomes(jet.publish("s.1", headers=part("x", 2, "1")), jet.publish("s.1", Unstorable()))
        assert found == [(2, 2), TypeError]
        assert await outcomes(jet.publish("s.1", headers=part("x", 3, "1"))) == [10176]
        assert (await stream.info()).state.messages == 2


async def test_a_batch_that_nobody_goes_on_with_ends_after_ten_seconds() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_atomic=True)
        told = await jet.create_stream("told", subjects=["$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.s"])
        consumer = await told.create_consumer(durable_name="c")
        await jet.publish("s.1", headers=part("x", 1))
        runtime.clock.advance(7)
        await jet.publish("s.1", headers=part("y", 1))
        await jet.publish("s.1", headers=part("x", 2))
        runtime.clock.advance(9.9)
        assert (await told.info()).state.messages == 0
        runtime.clock.advance(0.1)
        found = await consumer.fetch(1, timeout=None) + await consumer.fetch(1, timeout=None)
        advisories = [msgspec.json.decode(message.data) for message in found]
        assert {(told["batch"], told["reason"]) for told in advisories} == {("x", "timeout"), ("y", "timeout")}
        with pytest.raises(ApiError) as refused:
            await jet.publish("s.1", headers=part("x", 3, "1"))
        assert refused.value.err_code == 10176


async def test_each_message_lets_a_batch_wait_again() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_atomic=True)
        for seq in range(1, 6):
            assert await jet.publish("s.1", headers=part("x", seq)) == STAGED
            runtime.clock.advance(9)
        assert (await jet.publish("s.1", headers=part("x", 6, "1"))).count == 6


async def test_open_batches_are_of_one_process_and_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.create_stream("s", subjects=["s.>"], allow_atomic=True)
        await jet.publish("s.1", headers=part("x", 1))
        assert await outcomes(other.publish("s.1", headers=part("x", 2, "1"))) == [10176]
        await other.publish("s.1")
        assert await outcomes(jet.publish("s.1", headers=part("x", 2))) == [(0, 0)]
    async with pelton.open(path) as jet:
        assert await outcomes(jet.publish("s.1", headers=part("x", 3, "1"))) == [10176]
        assert (await (await jet.stream("s")).info()).state.messages == 1


async def test_one_transaction_and_one_sync(tmp_path: Path) -> None:
    disk = FaultySync()
    async with open_engine(tmp_path / "a.pelton", sync_file=disk) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_atomic=True)
        before = disk.calls
        await jet.publish_atomic([("s.1", b"x")] * 1000)
        assert disk.calls == before + 1
