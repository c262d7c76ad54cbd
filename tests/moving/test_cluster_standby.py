"""A cluster that is the standby of a file: what the store held is there, and no token is given a second time."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import pelton
from pelton.api import ConfigError, StoreStandbyError
from pelton.moving import follow, promote, standby_status
from pelton.moving.cluster_standby import ClusterWriter, open_target
from pelton.moving.promotion import open_writer
from pelton.moving.served_log import FollowedFile, name_of
from pelton.observe.alarms import alarms_of, health_facts
from tests.docs.pages import ROOT
from tests.kit.nats_server import nats_cluster, nats_server
from tests.moving.takeover import check_lease, check_one_holder, load, tokens_given
from tests.moving.test_copy import make_shop, messages_of


class Pair:
    """A store, and the address of the cluster that is its standby."""

    def __init__(self, store: Path, standby: str) -> None:
        self.store = str(store)
        self.standby = standby

    def open(self, path: str | None = None) -> Any:
        return pelton.open(path or self.store)

    @asynccontextmanager
    async def writer(self, *, num_replicas: int | None = None) -> AsyncGenerator[ClusterWriter]:
        async with pelton.open(self.store, read_only=True) as here, open_target(self.standby) as there:
            followed = FollowedFile(self.store, None)
            writer = ClusterWriter(here, there, followed, name_of(self.standby), num_replicas)
            await writer.begin()
            yield writer

    async def turn(self) -> None:
        async with self.writer() as writer:
            while await writer.turn() is None:
                pass


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with nats_server(tmp_path / "server") as server:
        yield Pair(tmp_path / "shop.pelton", server.url)


async def test_it_is_the_whole_store_and_takes_its_place(pair: Pair) -> None:
    await make_shop(pair.store)
    async with pelton.open(pair.store) as jet, pair.writer() as writer:
        assert await writer.turn() is True
        assert await writer.turn() is False
        # What is there for its programs begins when it is promoted.
        async with pelton.open(pair.standby) as there:
            with pytest.raises(pelton.NoStreamForSubjectError):
                await there.publish("orders.1", b"too early")
        orders = await jet.stream("orders")
        for number in range(40):
            await jet.publish(f"orders.{number % 3}", b"%d" % number, msg_id=f"later-{number}")
        await orders.delete_message(40)
        await (await jet.bucket("colours")).put("roof", b"red")
        await (await jet.create_stream("short", subjects=["short"])).create_consumer(durable_name="one")
        await writer.turn()
        await jet.delete_stream("short")
        await jet.delete_stream("empty")
        await jet.create_stream("empty", subjects=["empty.>"], retention="interest")
        await (await jet.stream("empty")).create_consumer(durable_name="reader")
        await jet.publish("empty.1", b"made anew")
        found = await promote(pair.standby)
        assert (found.is_complete, found.problem, found.source) == (True, "", pair.store)
        with pytest.raises(StoreStandbyError, match="replaced by its standby"):
            await jet.publish("orders.1", b"too late")
        with pytest.raises(StoreStandbyError, match="was promoted"):
            await writer.turn()
    async with pelton.open(pair.store, read_only=True) as jet:
        [alarm] = alarms_of(await health_facts(jet, pair.store, (), ()))
        assert (alarm.kind, alarm.text.split(pair.standby)) == (
            "standby",
            ["The store was replaced by its standby ", ": write to that one."],
        )
    with pytest.raises(StoreStandbyError, match="copy the cluster"):
        async with pelton.open(pair.store):
            pass
    await check_contents(pair)
    await check_work(pair)
    assert standby_status(pair.standby).state == "store"
    with pytest.raises(ConfigError, match="already"):
        await promote(pair.standby)


async def check_contents(pair: Pair) -> None:
    async with pelton.open(pair.store, read_only=True) as old, pelton.open(pair.standby) as new:
        assert {*await new.stream_names()} - {*await old.stream_names()} == {"KV_pelton_standby", "KV_pelton_tokens"}
        for name in await old.stream_names():
            mine, theirs = [await messages_of(await jet.stream(name)) for jet in (old, new)]
            facts = [
                [(each.seq, each.subject, each.data) for each in found if "Nats-Schedule" not in each.headers]
                for found in (mine, theirs)
            ]
            assert facts[0] == facts[1], name
            assert len(mine) == len(theirs), name
            before, after = [(await jet.stream(name)).config for jet in (old, new)]
            assert (after.subjects, after.max_msgs, after.retention) == (
                before.subjects,
                before.max_msgs,
                before.retention,
            )
            assert {key for key in after.metadata if key.startswith("pelton.")} <= {
                *before.metadata,
                "pelton.queue.tokens",
            }
        numbers = [(await (await (await jet.stream("orders")).consumer("packer")).info()) for jet in (old, new)]
        for info in numbers:
            assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (5, 4, numbers[0].num_pending)


async def check_work(pair: Pair) -> None:
    async with pelton.open(pair.standby) as jet:
        await jet.publish("orders.1", b"now")
        garage = await jet.queue("garage", create=False)
        done = list[str]()

        @garage.job
        async def repair(car: str) -> None:
            done.append(car)

        assert await garage.redrive_all() == 1
        await garage.work(until_idle=True, handle_signals=False)
        assert sorted(done) == ["b", "c", "wreck"]
        assert (await garage.counts()).scheduled == 1
        assert [entry.name for entry in await garage.schedules()] == ["nightly"]


async def test_what_is_not_its_standby_is_left_alone(pair: Pair, tmp_path: Path) -> None:
    async with pelton.open(pair.store) as jet, pelton.open(pair.standby) as there:
        await jet.create_stream("orders", subjects=["orders"])
        await jet.publish("orders", b"mine")
        with pytest.raises(ConfigError, match="no standby"):
            standby_status(pair.standby)
        await there.create_stream("orders", subjects=["orders"])
        with pytest.raises(ConfigError, match="nothing is overwritten"):
            await follow(pair.store, pair.standby)
        with pytest.raises(ConfigError, match="first copy"):
            await promote(pair.standby)
        await there.delete_stream("orders")
        await pair.turn()
        with pytest.raises(ConfigError, match="without demote"):
            await follow(pair.store, pair.standby, demote=True)
        with pytest.raises(ConfigError, match="is not the store"):
            await promote(pair.standby, source="nats://other:4222")
        other = str(tmp_path / "other.pelton")
        async with pelton.open(other):
            pass
        with pytest.raises(ConfigError, match="another store"):
            await follow(other, pair.standby)
        for _ in range(3):
            await jet.publish("orders", b"later")
        found = standby_status(pair.standby)
        assert (found.state, found.source, found.lag_messages, found.problem) == ("standby", pair.store, 3, "")
        # A second follower takes over from the first.
        async with pair.writer() as first, pair.writer() as second:
            await second.turn()
            await jet.publish("orders", b"more")
            with pytest.raises(StoreStandbyError, match="another process"):
                await first.turn()
            # The first one has published that already.
            with suppress(pelton.WrongLastSequenceError):
                await second.turn()
            await second.turn()
        assert standby_status(pair.standby).lag_messages == 0


async def test_an_old_store_that_comes_back_is_told_and_an_interrupted_promotion_done_again(pair: Pair) -> None:
    async with pair.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        await jet.publish("orders", b"1")
        lease = await jet.lock("door", ttl=30).acquire()
        await pair.turn()
    os.rename(pair.store, pair.store + "-away")
    async with open_target(pair.standby) as there:
        # As if the first try had ended here.
        bucket = await there.bucket("pelton_standby")
        note = (await bucket.get("note")).value or b""
        await bucket.put("note", note.replace(b'"source"', b'"state":"promoting","source"'))
    assert "could not be reached" in (await promote(pair.standby)).problem
    os.rename(pair.store + "-away", pair.store)
    async with pair.open() as jet:
        await jet.publish("orders", b"nobody has told it yet")
    with pytest.raises(StoreStandbyError, match="knows it now"):
        await follow(pair.store, pair.standby)
    with pytest.raises(StoreStandbyError, match="replaced by its standby"):
        async with pair.open():
            pass
    async with pair.open(pair.standby) as new:
        assert (await (await new.stream("orders")).info()).state.messages == 1
        await check_lease(new, lease.token)


async def test_a_follower_that_sleeps_through_the_promotion_deletes_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pelton.open(pair.store) as jet, pair.writer() as writer, open_target(pair.standby) as there:
        for name in ("orders", "returns"):
            await jet.create_stream(name, subjects=[name])
            await jet.publish(name, b"1")
        await writer.turn()
        await jet.delete_stream("orders")
        backend: Any = writer._there.backend
        publish, is_carried_out = backend.publish, asyncio.Event()

        async def publish_late(subject: str, *rest: Any) -> Any:
            if not subject.startswith("$PELTON.standby_delete"):
                return await publish(subject, *rest)
            # What was ordered before, as if the server had not come to it yet.
            returns = await there.stream("returns")
            created = f"NATS/1.0\r\nPelton-Created: {(await returns.info()).created}\r\n\r\n"
            await there.update_stream(replace(config, republish=None))
            await there.backend.publish(subject.replace("orders", "returns"), b"", created.encode())
            promoting = asyncio.ensure_future(promote(pair.standby, ask_source=False))
            while not await is_promoting(there):
                pass
            assert not promoting.done()
            await there.delete_stream("returns")
            await promoting
            is_carried_out.set()
            return await publish(subject, *rest)

        config = (await there.stream("KV_pelton_standby")).config
        monkeypatch.setattr(backend, "publish", publish_late)
        with pytest.raises(StoreStandbyError, match="was promoted"):
            await writer.turn()
        assert is_carried_out.is_set()
        assert (await (await there.stream("orders")).info()).state.messages == 1
        # Nobody's publishes delete streams then.
        assert (await there.stream("KV_pelton_standby")).config.republish is None


async def is_promoting(jet: pelton.Jet) -> bool:
    return b"promoting" in ((await (await jet.bucket("pelton_standby")).get("note")).value or b"")


async def test_a_store_has_one_successor(pair: Pair, tmp_path: Path) -> None:
    async with pelton.open(pair.store) as jet:
        await jet.create_stream("orders", subjects=["orders"])
    await pair.turn()
    for name in ("one", "two"):
        with closing(open_writer(pair.store, str(tmp_path / name), None)) as writer:
            writer.turn()
    await promote(tmp_path / "one")
    for other in (pair.standby, str(tmp_path / "two")):
        with pytest.raises(StoreStandbyError, match=r"replaced by .*one before"):
            await promote(other)
        assert standby_status(other).state == "standby"
        # Whoever knows that it is lost goes on with another one.
        assert not (await promote(other, ask_source=False)).is_complete


async def test_what_is_changed_on_its_way_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pelton.open(pair.store) as jet, pair.writer() as writer, open_target(pair.standby) as there:
        await jet.create_stream("orders", subjects=["orders"])
        for data in (b"a spade", b"a rake", b"a hoe"):
            await jet.publish("orders", data)
        backend: Any = writer._there.backend
        publish_batch = backend.publish_batch

        async def publish_changed(batch: list[Any]) -> Any:
            return await publish_batch([replace(one, data=one.data.replace(b"rake", b"bike")) for one in batch])

        with monkeypatch.context() as patch:
            patch.setattr(backend, "publish_batch", publish_changed)
            with pytest.raises(ConfigError, match=r"message 2 of stream 'orders' .* is not what was sent"):
                await writer.turn()
        await there.delete_stream("orders")
        assert await writer.turn() is True
        copy = await there.stream("orders")
        assert [one.data for one in await messages_of(copy)] == [b"a spade", b"a rake", b"a hoe"]


async def test_a_job_has_one_holder_by_its_tokens_and_so_has_an_election(pair: Pair) -> None:
    await check_one_holder(pair, pair.turn)


async def test_another_key_of_the_store_ends_its_follower(pair: Pair) -> None:
    copied, loop = asyncio.Event(), asyncio.get_running_loop()
    async with pelton.open(pair.store, key=b"k" * 32) as jet:
        await jet.create_stream("orders", subjects=["orders"])
        following = asyncio.ensure_future(
            follow(pair.store, pair.standby, key=b"k" * 32, on_copied=lambda: loop.call_soon_threadsafe(copied.set))
        )
        await copied.wait()
        await jet.rekey(b"n" * 32)
        with pytest.raises(pelton.StoreKeyError, match="another process has changed its key"):
            await following
        async with pelton.open(pair.standby) as there:
            assert "orders" in await there.stream_names()


@pytest.mark.parametrize("rounds", [pytest.param(1, id="short"), pytest.param(40, id="long")])
async def test_promoted_in_the_middle_of_load_no_token_ever_falls(tmp_path: Path, rounds: int) -> None:
    draw = random.Random(rounds)
    for number in range(rounds):
        with nats_server(tmp_path / f"server{number}") as server:
            pair = Pair(tmp_path / f"{number}.pelton", server.url)
            await promote_under_load(pair, draw, asks=draw.random() < 0.5)


async def promote_under_load(pair: Pair, draw: random.Random, *, asks: bool) -> None:
    old = await pelton.open(pair.store)
    work = await old.create_stream("work", subjects=["work.>"], retention="workqueue")
    await work.create_consumer(durable_name="workers", ack_policy="explicit")
    await old.create_stream("orders", subjects=["orders"], allow_direct=True)
    copied = asyncio.Event()
    loop = asyncio.get_running_loop()
    acknowledged = list[int]()
    following = follow(pair.store, pair.standby, on_copied=lambda: loop.call_soon_threadsafe(copied.set))
    copying, loading = asyncio.ensure_future(following), asyncio.ensure_future(load(old, acknowledged))
    await copied.wait()
    await asyncio.sleep(draw.uniform(0, 0.4))
    if not asks:
        # Whoever is cut off from its follower goes on for a while.
        copying.cancel()
        await asyncio.wait([copying])
    before = await tokens_given(old, draw.randrange(1, 4))
    found = await promote(pair.standby, ask_source=asks)
    assert found.is_complete is asks
    loading.cancel()
    await asyncio.wait([loading])
    if not asks:
        before = await tokens_given(old, 1)
    else:
        with pytest.raises(StoreStandbyError):
            await asyncio.wait_for(copying, 20)
    await old.close()
    async with pelton.open(pair.standby) as new:
        state = (await (await new.stream("orders")).info()).state
        was = len(acknowledged) if asks else sum(at < found.copied_ns for at in acknowledged)
        assert state.messages >= was
        given = await tokens_given(new, 1)
    # A cluster counts the deliveries of plain consumers anew.
    for kind in ("lock", "semaphore"):
        assert given[kind] > before[kind], kind


async def make_load(jet: pelton.Jet, draw: random.Random) -> None:
    """Store and acknowledge for ever, in bursts; messages come and go on all sides of each other."""
    work = await jet.stream("work")
    consumer = await work.consumer("workers")
    while True:
        await asyncio.gather(*(jet.publish(f"work.{n % 5}", draw.randbytes(200)) for n in range(draw.choice([1, 40]))))
        for message in await consumer.fetch(20, no_wait=True):
            await (message.ack() if draw.random() < 0.8 else message.nak(delay=draw.random()))
        await (await jet.bucket("sizes")).put(f"shoe{draw.randrange(9)}", draw.randbytes(20))
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("kills", [pytest.param(3, id="short"), pytest.param(60, id="long")])
@pytest.mark.parametrize("servers", [1, 3])
async def test_killed_followers(tmp_path: Path, servers: int, kills: int) -> None:
    draw, start = random.Random(kills), nats_server if servers == 1 else nats_cluster
    with start(tmp_path / "servers") as server:
        pair = Pair(tmp_path / "shop.pelton", server.url)
        async with pelton.open(pair.store) as jet:
            work = await jet.create_stream("work", subjects=["work.>"], retention="workqueue")
            await work.create_consumer(durable_name="workers", ack_policy="explicit", ack_wait=60)
            await jet.create_bucket("sizes", history=3)
            await pair.turn()
            loading = asyncio.ensure_future(make_load(jet, draw))
            for _ in range(kills):
                child = following(pair, servers)
                await asyncio.sleep(draw.uniform(1.0, 3.0))
                child.kill()
                assert await asyncio.to_thread(child.wait) < 0
            loading.cancel()
            await asyncio.wait([loading])
            assert (await promote(pair.standby)).is_complete
        await compare_streams(pair)


def following(pair: Pair, servers: int) -> subprocess.Popen[bytes]:
    words = ["copy", pair.store, pair.standby, "--follow", "--replicas", str(servers)]
    return subprocess.Popen(
        [sys.executable, "-m", "pelton", *words], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )


async def compare_streams(pair: Pair) -> None:
    async with pelton.open(pair.store, read_only=True) as old, pelton.open(pair.standby) as new:
        for name in ("work", "KV_sizes"):
            mine, theirs = [await messages_of(await jet.stream(name)) for jet in (old, new)]
            assert [(one.seq, one.subject, one.data) for one in mine] == [
                (one.seq, one.subject, one.data) for one in theirs
            ]
