"""A standby is its store as of one moment, whatever kills its follower; promoted, it gives no token a second time."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import pelton
from pelton.api import ConfigError, StoreError, StoreReadOnlyError, StoreSettingsError, StoreStandbyError
from pelton.engine.salvage import recount
from pelton.moving import follow, promote, standby_status
from pelton.moving.promotion import open_writer
from pelton.observe import store_summary
from pelton.observe.alarms import HealthFacts, alarms_of
from pelton.observe.samples import samples
from pelton.storage import Fault, ReadOnlyDatabase
from pelton.storage.keys import unlock
from pelton.storage.standby import StandbyWriter, noting, sum_of_last_seqs
from pelton.storage.store_file import note_of
from tests.moving.takeover import check_lease, check_one_holder, load, tokens_given
from tests.moving.test_copy import make_shop
from tests.stores.test_old_stores import unpacked

KEY = b"k" * 32


class Pair:
    """A store and its standby, in two folders."""

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        self.key = key
        for name in ("here", "there"):
            (folder / name).mkdir()
        self.store, self.standby = (str(folder / name / "shop.pelton") for name in ("here", "there"))

    def swap(self) -> None:
        self.store, self.standby = self.standby, self.store

    def open(self, path: str | None = None, **options: Any) -> Any:
        return pelton.open(path or self.store, key=self.key, **options)

    def follower(self, *, demote: bool = False) -> closing[StandbyWriter]:
        return closing(open_writer(self.store, self.standby, self.key, demote=demote))

    def turn(self) -> None:
        with self.follower() as follower:
            follower.turn()

    def check(self) -> None:
        assert contents(self.standby, self.key) == contents(self.store, self.key)
        assert recount(self.standby, self.key) == []


@pytest.fixture(params=["plain", "encrypted"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(tmp_path, KEY if request.param == "encrypted" else None)


@pytest.fixture
def plain(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def contents(path: str, key: bytes | None) -> dict[str, list[Any]]:
    """Return all rows of all tables."""
    with closing(ReadOnlyDatabase(path, key=key)) as store, store.reading():
        names = store.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()
        return {str(name): store.execute(f"SELECT * FROM {name}").fetchall() for (name,) in sorted(names)}


def fold_log(path: str, key: bytes | None, mode: str = "PASSIVE") -> None:
    with closing(apsw.Connection(path)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        unlock(connection, key)
        connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()


def last_seqs(path: str, key: bytes | None = None) -> int:
    with closing(ReadOnlyDatabase(path, key=key)) as store, store.reading():
        return sum_of_last_seqs(store)


async def test_it_is_the_whole_store(pair: Pair) -> None:
    with pytest.raises(StoreSettingsError):
        await follow(pair.store, pair.standby)
    if pair.key is None:
        await make_shop(pair.store)
    async with pair.open() as jet:
        await jet.create_bucket("sizes", history=5)
        async with jet.lock("door", ttl=30):
            with pair.follower() as follower:
                assert follower.turn() is True
                pair.check()
                assert follower.turn() is False
                for _ in range(3):
                    sizes = await jet.bucket("sizes")
                    for size in range(20):
                        await sizes.put("shoe", b"%d" % size)
                    await sizes.delete("shoe")
                    follower.turn()
                    pair.check()
                # A consumer of a stream that is made, and goes, between two turns.
                await (await jet.create_stream("short", subjects=["short"])).create_consumer(durable_name="one")
                await jet.delete_stream("short")
                follower.turn()
                pair.check()
        pair.turn()
        assert contents(pair.standby, pair.key)["streams"]


async def test_nothing_is_missed_when_the_log_begins_anew(pair: Pair) -> None:
    draw = random.Random(31)
    async with pair.open() as jet:
        await jet.create_stream("orders", subjects=["orders.>"], max_msgs=500)
        anew = 0
        with pair.follower() as follower:
            header = b""
            for _ in range(60):
                for number in range(draw.randrange(5)):
                    await jet.publish(f"orders.{number}", draw.randbytes(draw.choice([10, 5000])))
                if draw.random() < 0.4:
                    fold_log(pair.store, pair.key, draw.choice(["PASSIVE", "FULL"]))
                if draw.random() < 0.6:
                    follower.turn()
                    log = Path(pair.store + "-wal").read_bytes()[:32]
                    anew, header = anew + (log != header), log
            follower.turn()
        assert anew > 2
        pair.check()


async def test_a_follower_tells_that_the_store_has_another_key(tmp_path: Path) -> None:
    pair = Pair(tmp_path, KEY)
    async with pair.open() as jet:
        with pair.follower() as follower:
            follower.turn()
            await jet.rekey(b"n" * 32)
            with pytest.raises(Fault) as caught:
                follower.turn()
            assert (caught.value.kind, caught.value.path) == ("key", pair.store)


async def test_two_followers_take_turns(plain: Pair) -> None:
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"])
        with plain.follower() as one, plain.follower() as other:
            for number in range(40):
                await jet.publish("orders", b"x" * 2000)
                if not number % 5:
                    fold_log(plain.store, None, "FULL")
                (one, other)[number % 3 == 1].turn()
            other.turn()
            plain.check()
            one.turn()
            plain.check()


async def test_a_standby_is_only_read(pair: Pair) -> None:
    async with pair.open() as jet:
        orders = await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        await jet.publish("orders", b"1")
        with pair.follower() as follower:
            follower.turn()
            async with pair.open(pair.standby, read_only=True) as copy:
                assert (await (await copy.stream("orders")).info()).state.messages == 1
                await jet.publish("orders", b"2")
                follower.turn()
                assert (await (await copy.stream("orders")).info()).state.messages == 2
                with pytest.raises(StoreReadOnlyError):
                    await copy.publish("orders", b"3")
                await jet.publish("orders", b"3")
                fold_log(pair.store, pair.key, "FULL")
                follower.turn()
                await jet.publish("orders", b"4")
                follower.turn()
                assert (await (await copy.stream("orders")).info()).state.messages == 4
            with pytest.raises(StoreStandbyError, match="pelton promote"):
                async with pair.open(pair.standby):
                    pass
            with pytest.raises(StoreStandbyError, match="pelton promote"):
                pelton.compact(pair.standby, pair.key)
            assert pelton.verify(pair.standby, pair.key) == []
            await jet.publish("orders", b"5")
            follower.turn()
        pair.check()
        assert (await orders.info()).state.messages == 5


async def test_how_far_it_is_behind(plain: Pair) -> None:
    with pytest.raises(ConfigError, match="no standby"):
        standby_status(plain.standby)
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        with plain.follower() as follower:
            assert standby_status(plain.standby).lag_seconds is None
            follower.turn()
        for _ in range(70):
            await jet.publish("orders", b"")
        status = standby_status(plain.standby)
        assert (status.state, status.source, status.lag_messages) == ("standby", plain.store, 70)
        assert status.lag_seconds is not None
        plain.turn()
        assert standby_status(plain.standby).lag_messages == 0
        async with plain.open(plain.standby, read_only=True) as copy:
            found = {one.metric: one for one in await samples(copy, plain.standby)}
        assert found["pelton_standby_lag_seconds"].labels == (plain.store, plain.standby)
        assert 0 <= found["pelton_standby_lag_seconds"].value < 60
        await jet.publish("orders", b"")
        found = {one.metric: one for one in await samples(jet, plain.store)}
        assert found["pelton_standby_lag_messages"] == ("pelton_standby_lag_messages", (plain.store, plain.standby), 1)
        facts = HealthFacts(now=0, standbys=[replace((await store_summary(jet, plain.store)).standbys[0], seconds=61)])
        [alarm] = alarms_of(facts)
        assert "was up to date 61 s ago" in alarm.text
        assert "lacks 1 message" in alarm.text
        await clock_was_set_back(plain)
    os.rename(plain.store, plain.store + "-gone")
    gone = standby_status(plain.standby)
    assert gone.lag_messages is None
    assert "no such file" in gone.problem


async def clock_was_set_back(pair: Pair) -> None:
    ahead = time.time_ns() + 3600 * 10**9
    with closing(StandbyWriter(pair.store, pair.standby, None, now=lambda: ahead, verify=recount)) as writer:
        writer.turn()
    assert standby_status(pair.standby).lag_seconds == 0
    pair.turn()
    note = note_of(pair.standby)
    assert note is not None
    assert note.copied_ns < ahead


# --- what may go wrong while it is copied


async def test_damage_never_takes_the_place_of_a_good_standby(plain: Pair) -> None:
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        for _ in range(300):
            await jet.publish("orders", b"precious" * 50)
    plain.turn()
    before = contents(plain.standby, None)
    data = bytearray(Path(plain.store).read_bytes())
    at = data.rindex(b"precious")
    data[at] ^= 1
    Path(plain.store).write_bytes(data)
    with pytest.raises(Fault, match="damaged, and was not copied"):
        plain.turn()
    assert contents(plain.standby, None) == before
    assert recount(plain.standby) == []
    with pytest.raises(StoreError, match="damaged"):
        await follow(plain.store, plain.standby)


async def test_a_damaged_log_is_noticed_before_it_is_folded(plain: Pair) -> None:
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        with plain.follower() as follower:
            follower.turn()
            for _ in range(20):
                await jet.publish("orders", b"x" * 2000)
            follower.turn()
            log = Path(plain.standby + "-wal")
            data = bytearray(log.read_bytes())
            data[-3000] ^= 1
            log.write_bytes(data)
            fold_log(plain.store, None, "FULL")
            follower.turn()
            await jet.publish("orders", b"")
            with pytest.raises(Fault, match="is damaged"):
                follower.turn()
            follower.turn()
        plain.check()


async def test_a_file_that_is_a_store_is_left_alone(plain: Pair) -> None:
    for path in (plain.store, plain.standby):
        async with plain.open(path) as jet:
            await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
            await jet.publish("orders", path.encode())
    before = contents(plain.standby, None)
    with pytest.raises(Fault, match="--demote"):
        plain.turn()
    with pytest.raises(StoreSettingsError, match="of itself"):
        await follow(plain.store, plain.store)
    assert contents(plain.standby, None) == before
    async with plain.open(plain.standby):
        with pytest.raises(Fault, match="close it everywhere"), plain.follower(demote=True):
            pass
    with plain.follower(demote=True) as follower, pytest.raises(Fault, match="another store"):
        follower.turn()


async def test_a_store_of_an_older_schema(tmp_path: Path, plain: Pair) -> None:
    old = unpacked(2, tmp_path / "old.pelton")
    plain.store = str(old.path)
    plain.turn()
    plain.check()
    assert (await promote(plain.standby, ask_source=False)).source == plain.store
    async with plain.open(plain.standby) as jet:
        assert await jet.stream_names()
    assert pelton.verify(plain.standby) == []


_FOLLOWING = """
import asyncio, sys
from pelton.moving import follow
key = sys.argv[3].encode() or None
asyncio.run(follow(sys.argv[1], sys.argv[2], key=key, interval=0.002))
"""


def following(pair: Pair, **options: Any) -> subprocess.Popen[bytes]:
    ends = [pair.store, pair.standby, (pair.key or b"").decode()]
    return subprocess.Popen([sys.executable, "-c", _FOLLOWING, *ends], **options)


async def test_a_full_disk_is_waited_for(plain: Pair) -> None:
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        plain.turn()
        for _ in range(100):
            await jet.publish("orders", b"x" * 10_000)
        before = last_seqs(plain.standby)

        def limit_files() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        child = following(
            plain,
            preexec_fn=limit_files,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (note := note_of(plain.standby)) or not note.problem:
                await asyncio.sleep(0.01)
                assert child.poll() is None
        finally:
            child.kill()
            child.wait()
        assert recount(plain.standby) == []
        assert last_seqs(plain.standby) == before
        plain.turn()
        plain.check()


@pytest.mark.parametrize("kills", [pytest.param(3, id="short"), pytest.param(100, id="long")])
async def test_killed_followers(pair: Pair, kills: int) -> None:
    draw = random.Random(kills)
    async with pair.open() as jet:
        await jet.create_stream("orders", subjects=["orders.>"], max_msgs=2000)
        count = 0

        async def publish() -> None:
            nonlocal count
            while True:
                burst = range(draw.choice([1, 5, 300]))
                await asyncio.gather(*(jet.publish(f"orders.{n % 7}", draw.randbytes(600)) for n in burst))
                count += len(burst)
                await asyncio.sleep(0.001)

        publishing = asyncio.ensure_future(publish())
        seen = 0
        for _ in range(kills):
            child = following(pair)
            await asyncio.sleep(draw.uniform(0.15, 0.7))
            child.kill()
            await asyncio.to_thread(child.wait)
            if os.path.exists(pair.standby):
                assert await asyncio.to_thread(recount, pair.standby, pair.key) == []
                now = last_seqs(pair.standby, pair.key)
                assert seen <= now <= last_seqs(pair.store, pair.key)
                seen = now
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        pair.turn()
        pair.check()
        assert last_seqs(pair.standby, pair.key) >= count


# --- promoting


@pytest.fixture
def old_ends(plain: Pair) -> Iterator[None]:
    yield
    assert recount(plain.store) == recount(plain.standby) == []


async def test_the_old_store_is_told_and_nothing_is_lost(pair: Pair) -> None:
    async with pair.open() as jet:
        orders = await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        await jet.publish("orders", b"1")
        pair.turn()
        await jet.publish("orders", b"2")
        found = await promote(pair.standby, key=pair.key)
        assert (found.is_complete, found.problem, found.source) == (True, "", pair.store)
        with pytest.raises(StoreStandbyError, match="replaced by its standby"):
            await jet.publish("orders", b"3")
    with pytest.raises(StoreStandbyError, match="--demote"):
        async with pair.open():
            pass
    async with pair.open(read_only=True) as old:
        assert (await (await old.stream("orders")).info()).state.messages == 2
    assert standby_status(pair.standby, key=pair.key).state == "store"
    with pytest.raises(ConfigError, match="already"):
        await promote(pair.standby, key=pair.key)
    with pytest.raises(StoreStandbyError):
        await follow(pair.store, pair.standby, key=pair.key)
    async with pair.open(pair.standby) as jet:
        orders = await jet.stream("orders")
        assert [message.data for message in await orders.get_messages(5, seq=1)] == [b"1", b"2"]
        await jet.publish("orders", b"3")
        pair.swap()
        with pytest.raises(Fault, match="--demote"):
            pair.turn()
        with pair.follower(demote=True) as follower:
            follower.turn()
            pair.check()
            await jet.publish("orders", b"4")
            follower.turn()
            pair.check()
    assert (await promote(pair.standby, key=pair.key)).is_complete


async def test_an_old_store_that_comes_back_is_told(plain: Pair) -> None:
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        await jet.publish("orders", b"1")
    plain.turn()
    os.rename(plain.store, plain.store + "-away")
    found = await promote(plain.standby)
    assert not found.is_complete
    assert "no such file" in found.problem
    os.rename(plain.store + "-away", plain.store)
    async with plain.open() as jet:
        await jet.publish("orders", b"nobody has told it yet")
    with pytest.raises(StoreStandbyError, match="knows it now"):
        await follow(plain.store, plain.standby)
    with pytest.raises(StoreStandbyError, match="replaced by its standby"):
        async with plain.open():
            pass


async def test_a_promotion_that_was_interrupted_is_done_again(plain: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async with plain.open() as jet:
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
    plain.turn()
    with noting(plain.standby) as file:
        found = file.read()
        assert found is not None
        file.write(replace(found, state="promoting"))
    with pytest.raises(StoreStandbyError, match="pelton promote"):
        async with plain.open(plain.standby):
            pass
    with pytest.raises(Fault, match="promoted"):
        plain.turn()
    assert (await promote(plain.standby)).problem == "it was interrupted before"
    async with plain.open(plain.standby) as jet:
        await jet.publish("orders", b"")


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short"), pytest.param(100, id="long")])
async def test_promoted_in_the_middle_of_load_no_token_ever_falls(plain: Pair, old_ends: None, rounds: int) -> None:
    draw = random.Random(rounds)
    async with plain.open() as jet:
        work = await jet.create_stream("work", subjects=["work.>"], retention="workqueue")
        await work.create_consumer(durable_name="workers", ack_policy="explicit")
        await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        await tokens_given(jet, 1)
    highest: dict[str, int] = {}
    for _ in range(rounds):
        old = await plain.open()
        acknowledged: list[int] = []
        demote = os.path.exists(plain.standby)
        copying = asyncio.ensure_future(follow(plain.store, plain.standby, demote=demote, interval=0.002))
        loading = asyncio.ensure_future(load(old, acknowledged))
        while not (note := note_of(plain.standby)) or note.state != "standby" or not note.copied_ns:
            await asyncio.sleep(0.002)
        await asyncio.sleep(draw.uniform(0, 0.1))
        asks = draw.random() < 0.5
        was = len(acknowledged)
        if not asks:
            # Whoever is cut off from its follower goes on for a while.
            copying.cancel()
            await asyncio.wait([copying])
            note = note_of(plain.standby)
            assert note is not None
            was = sum(at < note.copied_ns for at in acknowledged)
            before = await tokens_given(old, draw.randrange(1, 4))
        else:
            before = await tokens_given(old, 1)
        found = await promote(plain.standby, ask_source=asks)
        assert found.is_complete is asks
        if not asks:
            loading.cancel()
            before = await tokens_given(old, 1)
        await asyncio.wait([loading, copying], timeout=20)
        await old.close()
        async with plain.open(plain.standby) as new:
            state = (await (await new.stream("orders")).info()).state
            assert state.messages >= (len(acknowledged) if asks else was)
            await (await new.stream("orders")).purge()
            given = await tokens_given(new, 1)
        for kind, token in given.items():
            assert token > before[kind] > highest.get(kind, 0), kind
        highest = given
        plain.swap()


async def test_what_was_taken_or_held_before_is_refused_after(plain: Pair, old_ends: None) -> None:
    async with plain.open() as jet:
        orders = await jet.create_stream("orders", subjects=["orders"], allow_direct=True)
        await orders.create_consumer(durable_name="packer", ack_wait=0.2)
        await jet.publish("orders", b"1")
        [taken] = await (await orders.consumer("packer")).fetch(1)
        lease = await jet.lock("door", ttl=30).acquire()
        plain.turn()
        await promote(plain.standby, ask_source=False)
        async with plain.open(plain.standby) as new:
            consumer = await (await new.stream("orders")).consumer("packer")
            await check_lease(new, lease.token)
            [again] = await consumer.fetch(1, timeout=5)
            assert again.delivered.token > taken.delivered.token
            assert again.delivered.num_delivered == 2


async def test_a_job_has_one_holder_by_its_tokens_and_so_has_an_election(plain: Pair, old_ends: None) -> None:
    async def turn() -> None:
        plain.turn()

    await check_one_holder(plain, turn)
