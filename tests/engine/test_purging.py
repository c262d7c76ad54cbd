"""A purge, and lower limits, are applied in portions between which others can write.

Each of them leaves a consistent store.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Any, cast

import pytest

import pelton
from pelton.api import StreamPurge
from pelton.engine.engine import Engine
from pelton.engine.salvage import recount
from pelton.engine.session import Session
from pelton.engine.verbs import streams
from pelton.streams import remover

_PORTION = 2


@pytest.fixture(autouse=True)
def _portions_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PORTION_S", -1)
    monkeypatch.setattr(remover, "_AT_ONCE", _PORTION)
    monkeypatch.setattr(remover, "_LOOKED_AT", 8)


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each portion of a purge or an update has returned."""
    returned: list[Any] = []
    for kind in (streams.Purge, streams.Update):

        def noted(self: Any, session: Session, remove_portion: Any = kind.remove_portion) -> Any:
            returned.append(remove_portion(self, session))
            return returned[-1]

        monkeypatch.setattr(kind, "remove_portion", noted)
    return returned


@pytest.fixture
async def jet(tmp_path: Path) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(tmp_path / "s.pelton") as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
        await jet.publish_batch([(f"s.{n % 2}", b"") for n in range(1, 41)])
        yield jet
    assert recount(str(tmp_path / "s.pelton")) == []


async def stored(jet: pelton.Jet) -> list[int]:
    return [message.seq for message in await (await jet.stream("s")).get_messages(1000)]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"filter": "s.1"}, list(range(2, 41, 2))),
        ({"filter": "*.1"}, list(range(2, 41, 2))),
        ({"filter": "s.>"}, []),
        ({"keep": 5}, list(range(36, 41))),
        ({"filter": "s.0", "keep": 15}, sorted([*range(1, 41, 2), *range(12, 41, 2)])),
        ({"filter": "s.0", "keep": 100}, list(range(1, 41))),
        ({"seq": 21}, list(range(21, 41))),
        ({"filter": "s.1", "seq": 21}, [*range(2, 21, 2), *range(21, 41)]),
        ({"filter": "s.1", "seq": 100}, list(range(2, 41, 2))),
    ],
)
async def test_others_write_between_two_portions(
    jet: pelton.Jet, portions: list[Any], asked: dict[str, Any], left: list[int]
) -> None:
    purge = asyncio.create_task((await jet.stream("s")).purge(**asked))
    published: list[int] = []
    while not portions:
        await asyncio.sleep(0)
    while not purge.done():
        published.append((await jet.publish("s.1", b"")).seq)
        await asyncio.sleep(0)
    assert await purge == 40 - len(left)
    assert await stored(jet) == left + published
    assert len(portions) >= max((40 - len(left)) // _PORTION, 2)
    assert published


async def test_a_whole_purge_is_one_portion(jet: pelton.Jet, portions: list[Any]) -> None:
    assert await (await jet.stream("s")).purge() == 40
    assert len(portions) == 1


async def begun(jet: pelton.Jet, portions: list[Any], **asked: Any) -> asyncio.Task[int]:
    """Begin a purge, and return after some portions."""
    purge = asyncio.create_task((await jet.stream("s")).purge(**asked))
    while len(portions) < 3:
        await asyncio.sleep(0)
    return purge


async def test_a_purge_that_is_cancelled_leaves_what_it_has_not_reached(jet: pelton.Jet, portions: list[Any]) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c", filter_subject="s.1")
    purge = await begun(jet, portions, filter="s.1")
    purge.cancel()
    with pytest.raises(asyncio.CancelledError):
        await purge
    left = [seq for seq in await stored(jet) if seq % 2]
    assert left == list(range(1, 41, 2))[-len(left) :]
    assert 0 < len(left) < 20
    assert (await consumer.info()).num_pending == len(left)
    assert [message.delivered.seq for message in await consumer.fetch(100, no_wait=True)] == left


async def test_a_consumer_follows_each_portion(jet: pelton.Jet, portions: list[Any]) -> None:
    stream = await jet.stream("s")
    filters = ["s.1", "s.0", "s.>", "*.1"]
    consumers = [await stream.create_consumer(durable_name=f"c{n}", filter_subject=f) for n, f in enumerate(filters)]
    held = await consumers[0].fetch(3)
    assert await stream.purge(filter="s.1") == 20
    assert [(await consumer.info()).num_pending for consumer in consumers] == [0, 20, 20, 0]
    info = await consumers[0].info()
    assert (info.num_ack_pending, info.delivered.stream_seq) == (0, 40)
    await held[0].ack()
    await jet.publish("s.1", b"")
    assert [message.delivered.seq for message in await consumers[0].fetch(10, no_wait=True)] == [41]
    assert len(portions) > 10


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_jobs_that_are_done_meanwhile_are_gone_once(jet: pelton.Jet, portions: list[Any], retention: str) -> None:
    stream = await jet.create_stream("q", subjects=["q.>"], retention=retention)
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish_batch([("q.a", b"") for _ in range(40)])
    messages = await consumer.fetch(20)
    purge = asyncio.create_task(stream.purge(filter="q.*", keep=10))
    for message in messages:
        await message.ack()
    assert 10 <= await purge <= 30
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (10, 31, 40)
    assert (await consumer.info()).num_pending == 10
    assert len(portions) > 1


async def test_a_portion_that_is_rolled_back_is_repeated(jet: pelton.Jet, portions: list[Any]) -> None:
    def fail() -> None:
        raise RuntimeError("another one's mistake")

    purge = asyncio.create_task((await jet.stream("s")).purge(filter="s.1"))
    failed = 0
    while not purge.done():
        with pytest.raises(RuntimeError):
            await cast(Engine, jet.backend).stage(fail, durable=False)
        failed += 1
    assert await purge == 20
    assert await stored(jet) == list(range(2, 41, 2))
    assert failed > 3


async def test_a_new_stream_of_that_name_is_not_purged(jet: pelton.Jet, portions: list[Any]) -> None:
    purge = await begun(jet, portions, filter="s.1")
    await jet.delete_stream("s")
    await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
    await jet.publish_batch([("s.1", b"")] * 30)
    with pytest.raises(pelton.StreamNotFoundError):
        await purge
    assert len(await stored(jet)) == 30


async def test_a_purge_is_audited_once(jet: pelton.Jet, portions: list[Any]) -> None:
    subscription = await jet.backend.subscribe("$JS.EVENT.ADVISORY.API")
    await jet.backend.call(StreamPurge(name="s", filter="s.1"))
    event = await subscription.next(60)
    assert event is not None
    assert b"STREAM.PURGE.s" in event.data
    assert b'purged\\":20' in event.data.replace(b" ", b"")
    await jet.backend.call(StreamPurge(name="s", filter="s.0", keep=1))
    event = await subscription.next(60)
    assert event is not None
    assert b'purged\\":19' in event.data.replace(b" ", b"")
    assert len(portions) > 10


# --- lower limits


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_msgs": 5}, range(36, 41)),
        ({"max_bytes": 33 * 7 + 10}, range(34, 41)),
        ({"max_msgs_per_subject": 3}, range(35, 41)),
        ({"max_msgs_per_subject": 9, "max_msgs": 10}, range(31, 41)),
        ({"max_msgs": 50}, range(1, 41)),
        ({"max_msgs": 5, "discard": "new"}, range(1, 41)),
        ({"max_msgs_per_subject": 1, "discard": "new"}, range(39, 41)),
    ],
)
async def test_lower_limits_are_applied_in_portions(
    jet: pelton.Jet, portions: list[Any], limits: dict[str, Any], left: range
) -> None:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c")
    updated = await jet.update_stream("s", **limits)
    assert await stored(jet) == list(left)
    assert [getattr(updated.config, name) for name in limits] == list(limits.values())
    assert (await consumer.info()).num_pending == len(left)
    if limits.get("discard") == "new":
        assert len(portions) == 1
    else:
        assert (40 - len(left)) // _PORTION <= len(portions) < (40 - len(left)) // _PORTION + 10


async def test_others_write_while_limits_are_lowered(jet: pelton.Jet, portions: list[Any]) -> None:
    update = asyncio.create_task(jet.update_stream("s", max_msgs=3))
    published = 0
    # Not without an end: portions are tiny here, and need not catch up with whoever writes all the time.
    while not update.done() and published < 60:
        published += (await jet.publish("s.1", b"")).seq > 0
        await asyncio.sleep(0)
    await update
    assert published > 3
    assert await stored(jet) == list(range(38 + published, 41 + published))


async def test_an_update_that_is_cancelled_leaves_the_old_limits(jet: pelton.Jet, portions: list[Any]) -> None:
    update = asyncio.create_task(jet.update_stream("s", max_msgs_per_subject=1))
    while len(portions) < 3:
        await asyncio.sleep(0)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    stream = await jet.stream("s")
    assert stream.config.max_msgs_per_subject == -1
    left = await stored(jet)
    assert left == list(range(41 - len(left), 41))
    assert 2 < len(left) < 40


async def test_a_crash_in_the_middle_leaves_the_old_limits(
    jet: pelton.Jet, portions: list[Any], tmp_path: Path
) -> None:
    update = asyncio.create_task(jet.update_stream("s", max_msgs_per_subject=2, max_msgs=3))
    while len(portions) < 12:
        await asyncio.sleep(0)
    (tmp_path / "crashed").mkdir()
    for part in ("s.pelton", "s.pelton-wal"):
        copyfile(tmp_path / part, tmp_path / "crashed" / part)
    await update
    path = tmp_path / "crashed" / "s.pelton"
    assert recount(str(path)) == []
    async with pelton.open(path) as after:
        left = await stored(after)
        assert 3 < len(left) < 40
        assert left == list(range(41 - len(left), 41))
        assert (await after.stream("s")).config.max_msgs == -1
        await after.update_stream("s", max_msgs_per_subject=2, max_msgs=3)
        assert await stored(after) == await stored(jet) == [38, 39, 40]


async def test_a_new_stream_of_that_name_is_not_changed(jet: pelton.Jet, portions: list[Any]) -> None:
    update = asyncio.create_task(jet.update_stream("s", max_msgs=3))
    while len(portions) < 3:
        await asyncio.sleep(0)
    await jet.delete_stream("s")
    await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
    await jet.publish_batch([("s.1", b"")] * 30)
    with pytest.raises(pelton.StreamNotFoundError):
        await update
    assert len(await stored(jet)) == 30


async def test_an_update_is_audited_once(jet: pelton.Jet, portions: list[Any]) -> None:
    subscription = await jet.backend.subscribe("$JS.EVENT.ADVISORY.API")
    await jet.update_stream("s", max_msgs=3)
    told = [await subscription.next(60) for _ in range(2)]
    assert all(event is not None for event in told)
    assert [b"STREAM.UPDATE.s" in event.data for event in told if event is not None] == [False, True]
    assert len(portions) > 10
    await jet.delete_stream("s")
    event = await subscription.next(60)
    assert event is not None
    assert b"STREAM.DELETE.s" in event.data
    await jet.create_stream("s", subjects=["s.>"], allow_direct=True)


async def test_what_was_removed_is_not_forgotten_in_a_snapshot(tmp_path: Path) -> None:
    """What a snapshot changes is undone in the rows: memory must not know otherwise."""
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.*"])
        plain = await stream.create_consumer(durable_name="plain")
        exclusive = await stream.create_consumer(durable_name="exclusive", max_ack_pending_per_subject=1)
        for n in range(6):
            await jet.publish(f"s.{n % 2}", b"")
        taken = [*await plain.fetch(4), *await exclusive.fetch(2)]
        await stream.purge(keep=1)
        reply = await jet.backend.call(pelton.api.ConsumerBacklogs())
        assert {(one.consumer, one.pending, one.ack_pending) for one in reply.backlogs} == {
            ("plain", 1, 0),
            ("exclusive", 1, 2),
        }
        for message in taken:
            with suppress(pelton.AckRejectedError):
                await message.ack()
        [last] = await plain.fetch(1)
        await last.ack()
        assert (await plain.info()).num_ack_pending == 0
    assert recount(str(path)) == []


async def test_what_a_snapshot_has_counted_is_not_written_over_what_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, pelton.open(path) as other:
        stream = await jet.create_stream("s", subjects=["s.*"])
        await stream.create_consumer(durable_name="c")
        theirs = await (await other.stream("s")).consumer("c")
        for n in range(6):
            await other.publish("s.1", b"%d" % n)
        # Of this process, it is counted by a snapshot; then the other one delivers.
        await jet.backend.call(pelton.api.ConsumerBacklogs())
        taken = await theirs.fetch(4)
        await jet.publish("s.2", b"")
        again = await theirs.fetch(2)
        assert [message.metadata.consumer_seq for message in (*taken, *again)] == list(range(1, 7))
        assert (await (await stream.consumer("c")).info()).num_ack_pending == 6
    assert recount(str(path)) == []
