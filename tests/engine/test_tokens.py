"""Fencing tokens only grow, whatever is opened, lost, deleted and recreated; an ack with an old one has no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pelton
from pelton.api import AckOp, Outgoing
from pelton.engine.salvage import recount
from pelton.jet import ack_of
from pelton.runtime import clock
from pelton.testing import ManualRuntime, manual_runtime
from tests.kit.power import RecordingDisk, write_image
from tests.storage.stores import open_engine, raw, undo_version_5


async def token(jet: pelton.Jet) -> int:
    await jet.publish("s", b"")
    consumer = await (await jet.stream("s")).consumer("c")
    [message] = await consumer.fetch(1)
    await message.ack()
    return message.metadata.token


@pytest.mark.parametrize("is_known", [True, False])
async def test_tokens_grow_through_all_openings(
    tmp_path: Path, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_known:
        # As if the system could not distinguish one boot of the machine from another.
        monkeypatch.setattr(clock, "_BOOT_ID", str(tmp_path / "none"))
    path, seen = tmp_path / "a.pelton", list[int]()
    async with pelton.open(path, sync="off") as first:
        stream = await first.create_stream("s")
        await stream.create_consumer(durable_name="c")
        seen.append(await token(first))
        async with pelton.open(path, sync="off") as second:
            seen += [await token(jet) for jet in (second, first, second)]
            await (await second.stream("s")).delete_consumer("c")
            await stream.create_consumer(durable_name="c")
            seen += [await token(jet) for jet in (first, second, first)]
            await second.delete_stream("s")
            await (await first.create_stream("s")).create_consumer(durable_name="c")
            seen += [await token(jet) for jet in (second, first)]
    assert seen == sorted(set(seen))


# --- a name that is given again

Again = Callable[[pelton.Jet, pelton.Stream, ManualRuntime], Awaitable[None]]
"""Makes the consumer of a stream go."""


async def deleted(jet: pelton.Jet, stream: pelton.Stream, runtime: ManualRuntime) -> None:
    await stream.delete_consumer("c")


async def expired(jet: pelton.Jet, stream: pelton.Stream, runtime: ManualRuntime) -> None:
    runtime.clock.advance(11)


async def deleted_with_its_stream(jet: pelton.Jet, stream: pelton.Stream, runtime: ManualRuntime) -> None:
    await jet.delete_stream("s")


NAMES = {
    "durable": {"durable_name": "c", "inactive_threshold": 10},
    "named": {"name": "c", "inactive_threshold": 10},
    "without acks": {"name": "c", "inactive_threshold": 10, "ack_policy": "none"},
}
WAYS = [deleted, expired, deleted_with_its_stream]


async def made(jet: pelton.Jet, **names: Any) -> pelton.Message:
    """Make the consumer, with its stream if needed, and take the first message."""
    if "s" not in await jet.stream_names():
        await jet.create_stream("s")
        await jet.publish("s", b"work")
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(**names)
    [message] = await consumer.fetch(1)
    return message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("many", [1, 9])
async def test_an_ack_of_before_settles_nothing_of_a_consumer_that_has_its_name_now(
    tmp_path: Path, way: Again, names: str, many: int
) -> None:
    runtime, path = manual_runtime(), tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet, pelton.open(path, runtime=runtime) as other:
        old = await made(jet, **NAMES[names])
        if way is expired and names != "without acks":
            # One that waits for a redelivery does not expire.
            await old.ack()
        await way(jet, await jet.stream("s"), runtime)
        # Another process recreates it: it numbers from 1, and the message is the same or has the same sequence.
        new = await made(other, durable_name="c")
        assert new.metadata.token > old.metadata.token
        late = [Outgoing("s", b"late")]
        kept = (await (await jet.stream("s")).info()).state.last_seq
        for each in (jet, other):
            answers = await each.backend.ack("s", "c", [ack_of(old.delivered, "ack")] * many)
            assert [type(answer) for answer in answers] == [pelton.AckRejectedError] * many
            with pytest.raises(pelton.AckRejectedError):
                await each.backend.settle(late, "s", "c", ack_of(old.delivered, "ack"))
        assert (await (await jet.stream("s")).info()).state.last_seq == kept
        await new.ack()
    assert recount(str(path)) == []


async def test_a_name_that_was_drawn_may_be_given_too() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        await jet.publish("s", b"")
        drawn = await stream.create_consumer()
        [old] = await drawn.fetch(1)
        await stream.delete_consumer(drawn.name)
        [new] = await (await stream.create_consumer(name=drawn.name, inactive_threshold=60)).fetch(1)
        assert new.metadata.token > old.metadata.token
        with pytest.raises(pelton.AckRejectedError, match="its consumer was deleted"):
            await old.ack()


async def test_the_tokens_of_consumers_that_stay_go_on() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        seen, first = list[int](), list[pelton.Message]()
        await jet.publish_batch([("s", b"")] * 20)
        stays = await stream.create_consumer(durable_name="stays")
        for _ in range(5):
            [message] = await stays.fetch(1)
            seen.append(message.metadata.token)
            first.append(message)
            goes = await stream.create_consumer(name="goes", inactive_threshold=60)
            assert len(await goes.fetch(3)) == 3
            await stream.delete_consumer("goes")
        assert seen == sorted(set(seen))
        for message in first:
            await message.ack()


async def test_ephemeral_consumers_do_not_use_up_tokens() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        await jet.publish("s", b"")
        seen = []
        for _ in range(50):
            consumer = await stream.create_consumer()
            [message] = await consumer.fetch(1)
            seen.append(message.metadata.token)
            await stream.delete_consumer(consumer.name)
        assert seen[-1] - seen[0] == 49


# --- copies


async def test_tokens_grow_where_a_stream_is_restored_into_its_store(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "copy.pelton"
    async with pelton.open(path) as jet:
        first = await made(jet, durable_name="c", ack_wait=60)
        await jet.backup(copy)
        await jet.publish("s", b"more")
        consumer = await (await jet.stream("s")).consumer("c")
        [second] = await consumer.fetch(1)
        await jet.delete_stream("s")
        await jet.restore(copy)
        await jet.publish("s", b"other work of the same number")
        [again] = await consumer.fetch(1)
        assert again.metadata.stream_seq == second.metadata.stream_seq
        assert again.metadata.consumer_seq == second.metadata.consumer_seq
        assert again.metadata.token > second.metadata.token
        for late in (first, second):
            with pytest.raises(pelton.AckRejectedError):
                await late.ack()
        await again.ack()
    assert recount(str(path)) == []


@pytest.mark.parametrize("streams", [None, ["s"]])
async def test_tokens_grow_in_a_copy(tmp_path: Path, streams: list[str] | None) -> None:
    path, copy, place = tmp_path / "a.pelton", tmp_path / "copy.pelton", tmp_path / "b.pelton"
    async with pelton.open(path) as jet:
        first = await made(jet, durable_name="c")
        await jet.backup(copy, streams=streams)
        await jet.publish("s", b"more")
        [second] = await (await (await jet.stream("s")).consumer("c")).fetch(1)
    pelton.restore(copy, place)
    async with pelton.open(place) as jet:
        await jet.publish("s", b"other work of the same number")
        [again] = await (await (await jet.stream("s")).consumer("c")).fetch(1)
        assert again.metadata.token > second.metadata.token
        acks = [ack_of(message.delivered, "ack") for message in (first, second, again)]
        answers = await jet.backend.ack("s", "c", acks)
        assert [answer is None for answer in answers] == [False, False, True]


async def test_tokens_grow_in_what_was_salvaged(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "copy.pelton"
    async with pelton.open(path) as jet:
        seen = (await made(jet, durable_name="c")).metadata.token
    assert pelton.salvage(path, copy) == []
    async with pelton.open(copy) as jet:
        await jet.publish("s", b"more")
        [again] = await (await (await jet.stream("s")).consumer("c")).fetch(1)
        assert again.metadata.token > seen


# --- power


@pytest.mark.parametrize("seed", range(5))
async def test_tokens_grow_when_power_takes_deliveries_that_were_not_synced(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, seen = RecordingDisk(f"tokens-{seed}"), list[int]()
    jet = open_engine(tmp_path / "a.pelton", vfs=disk.vfs, sync_file=disk.sync_file)
    try:
        stream = await jet.create_stream("s")
        for made_again in range(3):
            if made_again:
                await stream.delete_consumer("c")
            consumer = await stream.create_consumer(name="c", inactive_threshold=60)
            await jet.publish_batch([("s", b"")] * 3)
            seen += [message.metadata.token for message in await consumer.fetch(3)]
        image = tmp_path / "image"
        image.mkdir()
        write_image(image, disk.image(len(disk.events), Random(seed)))
    finally:
        await jet.close()
        disk.close()
    (tmp_path / "boot").write_text("after the power loss", encoding="ascii")
    monkeypatch.setattr(clock, "_BOOT_ID", str(tmp_path / "boot"))
    async with pelton.open(image / "a.pelton") as jet:
        consumer = await (await jet.stream("s")).consumer("c")
        after = [message.metadata.token for message in await consumer.fetch(3)]
    assert after
    assert seen + after == sorted(set(seen + after))


async def test_tokens_grow_in_a_store_of_the_first_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await made(jet, durable_name="c")
    with raw(path) as connection:
        undo_version_5(connection)
        connection.execute("UPDATE meta SET key='listeners' WHERE key='subscriptions'")
        connection.execute("ALTER TABLE pubsub_outbox RENAME COLUMN subscription TO listener")
        connection.execute("ALTER TABLE pubsub_outbox RENAME TO told")
        connection.execute("ALTER TABLE pubsub_subscriptions RENAME TO listeners")
        # Unchanged: epochs of 2^40 tokens each.
        connection.execute("UPDATE meta SET key='epoch', value=7 WHERE key='token_floor'")
        connection.execute("ALTER TABLE consumers RENAME COLUMN token_floor TO epoch")
        connection.execute("UPDATE consumers SET epoch=6")
        connection.execute("DROP TABLE pending_removed")
        connection.execute("ALTER TABLE stream_state DROP COLUMN subjects_upto")
        connection.execute("PRAGMA user_version=1")
    async with pelton.open(path) as jet:
        await jet.publish("s", b"")
        [message] = await (await (await jet.stream("s")).consumer("c")).fetch(1)
        assert message.metadata.token == (7 << 40) + 2
        late, due = ((epoch << 40) + 1 for epoch in (5, 6))
        acks = [AckOp(seq=1, consumer_seq=1, token=token) for token in (late, due)]
        assert [answer is None for answer in await jet.backend.ack("s", "c", acks)] == [False, True]
