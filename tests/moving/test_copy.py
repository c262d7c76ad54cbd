"""Copies from files and clusters to files and clusters: nothing is missing, nothing is there twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import ConfigError, ConsumerUnsettled, MessageNotFoundError, StoredMessage, StoreError
from pelton.connect import Jet
from pelton.connect import open as open_jet
from pelton.jet import Stream
from pelton.moving import CopyReport, copy
from pelton.moving.copying import Comparison, Differing
from pelton.storage.copies import in_parts
from pelton.testing import manual_runtime
from tests.places import PLACES, address_of

PAIRS = [(one, other) for one in PLACES for other in PLACES]
ROUND_TRIPS = [("file", "cluster", "file"), ("file", "file", "cluster"), ("cluster", "file", "cluster")]


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes an empty store of a kind."""
    with ExitStack() as stack:
        made = 0

        def make(place: str) -> str:
            nonlocal made
            made += 1
            folder = tmp_path / str(made)
            folder.mkdir()
            return stack.enter_context(address_of(place, folder))

        yield make


async def messages_of(stream: Stream) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    seq = 1
    while True:
        try:
            found.append(await stream.get_next_message(">", seq))
        except MessageNotFoundError:
            return found
        seq = found[-1].seq + 1


async def make_shop(address: str) -> None:
    """A stream with gaps and consumers, a bucket, objects, and a queue with jobs in every state."""
    async with pelton.open(address) as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"], max_msgs=1000, allow_msg_ttl=True)
        consumer = await orders.create_consumer(durable_name="packer", ack_wait=60)
        for number in range(30):
            await jet.publish(f"orders.{number % 3}", b"%d" % number, headers={"Number": str(number)})
        await jet.publish("orders.last", b"\x00\xff", msg_id="last", ttl=3600, expected_last_seq=30)
        taken = await consumer.fetch(10)
        for message in (*taken[:5], taken[7]):
            await message.ack()
        await orders.purge(seq=3)
        for seq in (11, 12, 20):
            await orders.delete_message(seq)
        empty = await jet.create_stream("empty", subjects=["empty.>"])
        await jet.publish("empty.1", b"")
        await empty.purge()
        colours = await jet.create_bucket("colours", history=3)
        for value in (b"red", b"green", b"blue", b"black"):
            await colours.put("door", value)
        await colours.put("roof", b"grey")
        await colours.delete("roof")
        files = await jet.create_objects("files")
        await files.put("plan", bytes(range(256)) * 1000)
        await make_garage(jet)


async def make_garage(jet: pelton.Jet) -> None:
    garage = await jet.queue("garage")

    @garage.job(max_attempts=1)
    async def repair(car: str) -> str:
        if car == "wreck":
            raise ValueError("nothing left")
        return car

    await repair.enqueue("a")
    await repair.enqueue("wreck")
    await garage.work(until_idle=True, handle_signals=False)
    await repair.enqueue("b")
    await garage.options(delay=86_400).enqueue(repair, "later")
    await garage.schedule("nightly", repair, args=("a",), cron="0 3 * * *")
    await repair.enqueue("c")


async def compare(one: str, other: str, *, exact: bool) -> None:
    async with pelton.open(one) as here, pelton.open(other) as there:
        # Where fencing tokens begin is a place's own.
        names, copied = [
            [name for name in await jet.stream_names() if name != "KV_pelton_tokens"] for jet in (here, there)
        ]
        assert copied == names
        for name in names:
            mine, theirs = [await messages_of(await jet.stream(name)) for jet in (here, there)]
            if exact:
                assert [*theirs] == [*mine]
            facts = [
                [(each.seq, each.subject, each.data) for each in found if "Nats-Schedule" not in each.headers]
                for found in (mine, theirs)
            ]
            assert facts[0] == facts[1]
            before, after = [(await (await jet.stream(name)).info()) for jet in (here, there)]
            assert after.state.messages == before.state.messages
            assert (after.config.max_msgs, after.config.retention) == (before.config.max_msgs, before.config.retention)
            assert not any(key.startswith("pelton.copy") for key in after.config.metadata)
            assert [*after.config.subjects] == [*before.config.subjects]


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_everything_is_copied(folders: Any, one: str, other: str) -> None:
    source, target = folders(one), folders(other)
    await make_shop(source)
    report = await copy(source, target)
    assert {each.name for each in report.streams} >= {"orders", "empty", "KV_colours", "OBJ_files", "JOBS_garage"}
    await compare(source, target, exact=(one, other) != ("file", "cluster"))
    async with pelton.open(target) as jet:
        colours = await jet.bucket("colours")
        assert [entry.value for entry in await colours.history("door")] == [b"green", b"blue", b"black"]
        assert [key async for key in colours.keys("*")] == ["door"]
        assert (await (await jet.objects("files")).get("plan")) == bytes(range(256)) * 1000
        garage = await jet.queue("garage", create=False)
        counts = await garage.counts()
        assert (counts.pending, counts.scheduled, counts.completed, counts.failed) == (2, 1, 1, 1)
        (schedule,) = await garage.schedules()
        assert (schedule.name, schedule.next_due > 0) == ("nightly", True)
        assert (await jet.publish("orders.new", b"")).seq == 32
        assert (await jet.publish("empty.new", b"")).seq == 2
        done: list[str] = []

        @garage.job
        async def repair(car: str) -> None:
            done.append(car)

        await garage.work(until_idle=True, handle_signals=False)
        assert done == ["b", "c"]


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_a_consumer_continues_where_it_was(folders: Any, one: str, other: str) -> None:
    source, target = folders(one), folders(other)
    await make_shop(source)
    report = await copy(source, target, streams=["orders"])
    (orders,) = report.streams
    assert (orders.consumers, orders.messages, orders.last_seq) == (("packer",), 26, 31)
    async with pelton.open(target) as jet:
        consumer = await (await jet.stream("orders")).consumer("packer")
        assert (await consumer.info()).ack_floor.stream_seq == 5
        if one == "file" and other == "file":
            request = ConsumerUnsettled(stream="orders", name="packer")
            assert [each.seq for each in (await jet.backend.call(request)).messages] == [6, 7, 9, 10]
            return
        # A cluster does not tell that 8 was acknowledged, and keeps to itself what still waits for its ack.
        is_known = {"file": [], "cluster": [8]}[one]
        waiting = [*range(6, 8), *is_known, 9, 10] if one != other else []
        expected = [*waiting, *range(13, 20), *range(21, 32)]
        found = await consumer.fetch(len(expected), timeout=60) + await consumer.fetch(10, timeout=0.3)
        assert sorted(message.delivered.seq for message in found) == expected


async def test_whoever_runs_it_again_changes_nothing_and_overwrites_nothing(folders: Any) -> None:
    source, target = folders("file"), folders("cluster")
    await make_shop(source)
    first = await copy(source, target)
    again = await copy(source, target)
    assert all(each.was_there for each in again.streams)
    assert [each.checksum for each in again.streams] == [each.checksum for each in first.streams]
    back = folders("file")
    async with pelton.open(back) as jet:
        await jet.create_stream("orders", subjects=["other"])
        await jet.publish("other", b"mine")
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        await copy(target, back)
    async with pelton.open(back) as jet:
        assert await jet.stream_names() == ["orders"]


@pytest.mark.parametrize("other", PLACES)
async def test_an_exclusive_queue_is_copied(folders: Any, other: str) -> None:
    source, target = folders("file"), folders(other)
    async with pelton.open(source) as jet:
        garage = await jet.queue("garage", exclusive=True)

        @garage.job
        async def repair(car: str) -> None:
            return

        for number in range(6):
            await garage.options(key=f"car{number % 2}").enqueue(repair, str(number))
        await repair.enqueue("free")
    await copy(source, target)
    async with pelton.open(target) as jet:
        garage, order = await jet.queue("garage", create=False), []
        assert garage.exclusive

        @garage.job(name="repair")
        async def work(car: str) -> None:
            order.append(car)

        await garage.work(until_empty=True, handle_signals=False)
        assert [car for car in order if car in "024"] == ["0", "2", "4"]
        assert sorted(order) == ["0", "1", "2", "3", "4", "5", "free"]


_KILLED = """
import asyncio, os, signal, sys
from pelton.moving import copy

source, target, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])

def told(stream, done, total):
    global calls
    calls -= 1
    if not calls:
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(copy(source, target, progress=told))
"""


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_killed_at_any_time_and_run_again_it_completes(folders: Any, one: str, other: str) -> None:
    source, target = folders(one), folders(other)
    async with pelton.open(source) as jet:
        for name in ("a", "b"):
            stream = await jet.create_stream(name, subjects=[f"{name}.>"])
            await jet.publish_batch([(f"{name}.{number % 7}", b"%d" % number) for number in range(1_800)])
            await stream.purge(filter=f"{name}.3")
            await stream.create_consumer(durable_name="reader")
    # Between two clusters, nothing is told within a stream.
    for calls in (1, 2, 5) if one != other else (1,):
        words = [sys.executable, "-c", _KILLED, source, target, str(calls)]
        killed = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
    report = await copy(source, target)
    assert [(each.name, each.messages, each.consumers) for each in report.streams] == [
        ("a", 1543, ("reader",)),
        ("b", 1543, ("reader",)),
    ]
    await compare(source, target, exact=(one, other) != ("file", "cluster"))


class FailingError(Exception):
    """What ends a copy in a test."""


class FailingBackend:
    """A backend that fails instead of carrying out its Nth write."""

    def __init__(self, inner: Any, before: int) -> None:
        self._inner = inner
        self._left = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return found if name not in ("call", "publish", "publish_batch", "ack") else self._counted(found)

    def _counted(self, method: Any) -> Any:
        async def counted(*arguments: Any) -> Any:
            if not type(arguments[0]).__name__.endswith(("InfoRequest", "Names", "List", "Get")):
                self._left -= 1
                if not self._left:
                    raise FailingError
            return await method(*arguments)

        return counted


@pytest.mark.parametrize("before", range(1, 16))
@pytest.mark.parametrize(("one", "other"), [("file", "cluster"), ("cluster", "file")])
async def test_it_may_fail_before_every_step(
    folders: Any, one: str, other: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders(one), folders(other)
    async with pelton.open(source) as jet:
        stream = await jet.create_stream(
            "a", subjects=["a.>"], retention="workqueue", allow_msg_schedules=True, deny_delete=True
        )
        reader = await stream.create_consumer(durable_name="reader", filter_subject="a.now.>")
        await jet.publish_batch([(f"a.now.{number % 7}", b"%d" % number) for number in range(40)])
        for message in (await reader.fetch(5))[1::2]:
            await message.ack()
        await jet.schedule("a.later", b"later", target="a.now.x", delay=86_400)
        await jet.publish("a.now.1", b"last")

    class FailingJet(Jet):
        def __init__(self, backend: Any, *others: Any) -> None:
            super().__init__(FailingBackend(backend, before), *others)

    with monkeypatch.context() as patched:
        # The first store that a copy opens is its source, which is not written.
        made = iter((Jet, FailingJet))
        patched.setattr("pelton.connect.opening.Jet", lambda *given: next(made)(*given))
        with suppress(FailingError):
            await copy(source, target)
    await copy(source, target)
    await compare(source, target, exact=False)
    async with pelton.open(target) as jet:
        stream = await jet.stream("a")
        assert (await stream.get_last_message("a.later")).data == b"later"
        info = await (await stream.consumer("reader")).info()
        assert info.num_pending + info.num_ack_pending == 39


# --- fencing tokens


async def tokens_given(address: str, *, is_new: bool) -> list[int]:
    """Work on a plain job, and on one of an exclusive queue; return their fencing tokens."""
    tokens: list[int] = []
    async with pelton.open(address) as jet:
        for exclusive in (False, True):
            queue = await jet.queue(f"shop{exclusive}", exclusive=exclusive, create=is_new)

            @queue.job
            async def pack(context: pelton.JobContext) -> None:
                tokens.append(context.token)

            await queue.options(key="k").enqueue(pack)
            await queue.work(until_idle=True, handle_signals=False)
    return tokens


@pytest.mark.parametrize("other", ["cluster", "file"])
async def test_fencing_tokens_go_on_above_those_that_a_file_has_given(folders: Any, other: str) -> None:
    source, target = folders("file"), folders(other)
    before = await tokens_given(source, is_new=True)
    await copy(source, target)
    await copy(source, target)
    after = await tokens_given(target, is_new=False)
    assert all(mine > his for mine, his in zip(after, before, strict=True)), (before, after)


# --- a store that does not stand still


async def make_overdue(address: str) -> None:
    """A store in which schedules, delayed jobs and expiries have fallen due since anybody had it open."""
    async with open_jet(address, runtime=manual_runtime()) as jet:
        await jet.create_stream("news", subjects=["news.>"], allow_msg_ttl=True, allow_msg_schedules=True)
        await jet.publish("news.kept", b"kept")
        await jet.publish("news.short", b"gone in a second", ttl=1)
        await jet.schedule("news.plan", b"due", target="news.due", delay=1)
        await jet.schedule("news.often", b"often", target="news.again", cron="@every 1s")
        words = await jet.create_bucket("words", ttl=5, limit_marker_ttl=60)
        await words.put("a", b"old")
        shop = await jet.queue("shop")

        @shop.job
        async def pack(number: int) -> int:
            return number

        await shop.options(delay=1).enqueue(pack, 1)
        await shop.schedule("often", pack, args=(2,), every=1)


def verified(report: CopyReport) -> dict[str, tuple[int, int]]:
    return {each.name: (each.messages, each.last_seq) for each in report.streams}


async def test_what_falls_due_meanwhile_is_the_copys_own(folders: Any) -> None:
    source, target = folders("file"), folders("file")
    await make_overdue(source)
    report = await copy(source, target)
    assert verified(report)["news"] == (4, 4)
    assert verified(report)["KV_words"] == (1, 1)
    assert not report.lost
    async with pelton.open(target) as jet:
        news = await jet.stream("news")
        assert (await news.get_next_message("news.due", 1)).data == b"due"
    with pytest.raises(pelton.ConfigError, match=r"copied before, and one of the two has changed since.*overwritten"):
        await copy(source, target)


async def test_a_store_at_work_is_copied_as_it_was_at_one_moment(folders: Any) -> None:
    source, target = folders("file"), folders("file")
    async with pelton.open(source) as jet, asyncio.TaskGroup() as group:
        stream = await jet.create_stream("pairs", subjects=["left.>", "right.>"], max_msgs=500, allow_msg_ttl=True)
        shop = await jet.queue("shop")
        moved, has_begun = 0, asyncio.Event()

        @shop.job
        async def pack(number: int) -> None:
            nonlocal moved
            async with jet.transaction() as tx:
                await tx.publish("left.x", b"%d" % number, ttl=1)
                await tx.publish("right.x", b"%d" % number)
            moved += 1
            if moved == 50:
                has_begun.set()
            await shop.enqueue(pack, number + 1)

        await shop.enqueue(pack, 0)
        working = group.create_task(shop.work(handle_signals=False))
        await has_begun.wait()
        before = (await stream.info()).state.last_seq
        report = await copy(source, target)
        after = (await stream.info()).state.last_seq
        working.cancel()
    messages, last = verified(report)["pairs"]
    assert before <= last <= after
    assert messages <= 500
    assert last % 2 == 0, "a transaction was cut in two"
    async with pelton.open(target) as jet:
        counts = await (await jet.queue("shop", create=False)).counts()
        assert counts.completed * 2 in (last, last - 2)
        # The job that ran had stored the next one, or not yet.
        assert counts.pending + counts.running in (1, 2)


async def test_a_stream_that_both_sides_share_only_by_name_is_refused(folders: Any) -> None:
    source, target = folders("file"), folders("file")
    await make_overdue(source)
    await copy(source, target, streams=["news"])
    async with pelton.open(target) as jet:
        await jet.delete_stream("news")
        await jet.create_stream("news", subjects=["news.>"])
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        await copy(source, target)


async def test_a_row_that_is_not_written_as_it_was_read_undoes_the_copy(
    folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders("file"), folders("file")
    await make_overdue(source)

    def damaging(source: Any, table: str, where: str) -> Iterator[list[Any]]:
        for rows in in_parts(source, table, where):
            yield [(*row[:4], b"another", *row[5:]) if row[2:5:2] == ("news.kept", b"kept") else row for row in rows]

    with monkeypatch.context() as patched:
        patched.setattr("pelton.storage.copies.in_parts", damaging)
        with pytest.raises(StoreError, match="stream 'news': message 1 was not written as it was read"):
            await copy(source, target)
    async with pelton.open(target) as jet:
        assert await jet.stream_names() == []
    await copy(source, target)


async def test_what_has_expired_on_one_side_is_not_missed(folders: Any) -> None:
    source, target = folders("file"), folders("file")
    async with pelton.open(source) as jet:
        await jet.create_stream("news", subjects=["news.>"], allow_msg_ttl=True)
        for number in range(6):
            await jet.publish(f"news.{number}", b"x", ttl=3600 if number % 2 else None)
    await copy(source, target)
    async with pelton.open(source) as here, pelton.open(target) as there:
        original, twin = await here.stream("news"), await there.stream("news")
        await original.delete_message(6)
        await twin.delete_message(2)
        now = (await twin.get_message(1)).time_ns

        async def compare_at(seconds: int) -> int:
            comparison = Comparison(lambda: now + seconds * 1_000_000_000, exact=True)
            await comparison.run(original, twin, near=(True, True))
            return comparison.messages

        assert await compare_at(3700) == 4
        with pytest.raises(Differing, match="message 2 differs, or is missing in the copy"):
            await compare_at(3500)
        await twin.delete_message(3)
        with pytest.raises(Differing, match="message 3 differs, or is missing in the copy"):
            await compare_at(3700)
