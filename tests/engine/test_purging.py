"""A purge is done in portions between which others can write, and each of which leaves a consistent store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
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
    """What each portion of a purge has returned."""
    returned: list[Any] = []
    remove_portion = streams.Purge.remove_portion

    def noted(self: streams.Purge, session: Session) -> Any:
        returned.append(remove_portion(self, session))
        return returned[-1]

    monkeypatch.setattr(streams.Purge, "remove_portion", noted)
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
