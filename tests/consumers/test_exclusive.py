"""``max_ack_pending_per_subject``: the next message of a subject waits for the previous one, and for nothing else."""

import random

import pytest

import pelton
from pelton.api import AckOp, Delivered, PullRequest
from pelton.testing import ManualRuntime


@pytest.fixture
async def stream(jet: pelton.Jet) -> pelton.Stream:
    """1 a, 2 a, 3 a, 4 b, 5 b, 6 c in a work queue."""
    stream = await jet.create_stream("s", subjects=["s.>"], retention="workqueue")
    await jet.publish_batch([(f"s.{name}", b"") for name in "aaabbc"])
    return stream


@pytest.fixture
async def consumer(stream: pelton.Stream) -> pelton.Consumer:
    return await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1, ack_wait=10)


async def taken(consumer: pelton.Consumer, batch: int = 10) -> list[int]:
    return [m.metadata.stream_seq for m in await consumer.fetch(batch, no_wait=True)]


async def test_one_of_each_subject_and_no_subject_waits_for_another(consumer: pelton.Consumer) -> None:
    a, b, c = await consumer.fetch(10)
    assert [m.metadata.stream_seq for m in (a, b, c)] == [1, 4, 6]
    assert [m.metadata.num_pending for m in (a, b, c)] == [5, 4, 3]
    assert await taken(consumer) == []
    assert (await consumer.info()).num_pending == 3
    await b.ack()
    assert await taken(consumer) == [5]
    await a.ack()
    assert await taken(consumer) == [2]
    await c.ack()
    assert await taken(consumer) == []


@pytest.mark.parametrize("how", ["ack", "term"])
async def test_the_next_is_deliverable_in_the_transaction_that_settles_the_previous(
    consumer: pelton.Consumer, how: str
) -> None:
    a, *_ = await consumer.fetch(10)
    await getattr(a, how)()
    database = consumer._backend._db  # type: ignore[attr-defined]  # the engine's, whose rows are looked at
    assert database.execute("SELECT seq, subject FROM ready").fetchall() == [(2, "s.a")]


async def test_the_floor_of_acks_lies_below_what_became_ready(consumer: pelton.Consumer) -> None:
    """A reset keeps the floor: everything unsettled must be above it."""
    a, b, c = await consumer.fetch(3)
    await consumer.ack([a, c])
    info = await consumer.info()
    assert (info.delivered.stream_seq, info.ack_floor.stream_seq) == (6, 1)
    await b.ack()
    assert (await consumer.info()).ack_floor.stream_seq == 1
    await consumer.reset()
    assert await taken(consumer) == [2, 5]


async def test_a_retry_keeps_its_place(consumer: pelton.Consumer, runtime: ManualRuntime) -> None:
    a, b, _ = await consumer.fetch(10)
    await a.nak(delay=5)
    await b.nak()
    assert await taken(consumer) == [4]
    runtime.clock.advance(5)
    assert await taken(consumer) == [1]
    runtime.clock.advance(10)
    assert sorted(await taken(consumer)) == [1, 4, 6]


async def test_an_exhausted_message_lets_the_next_go(stream: pelton.Stream, runtime: ManualRuntime) -> None:
    consumer = await stream.create_consumer(
        durable_name="c", max_ack_pending_per_subject=1, ack_wait=1, max_deliver=2, filter_subject="s.a"
    )
    for expected in (1, 1, 2, 2, 3, 3):
        assert await taken(consumer) == [expected]
        runtime.clock.advance(1)
    assert await taken(consumer) == []


async def test_three_at_once_the_oldest_first(jet: pelton.Jet, stream: pelton.Stream) -> None:
    await jet.publish_batch([("s.a", b"")] * 2)
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=3, filter_subject="s.a")
    first, second, third = await consumer.fetch(10)
    assert await taken(consumer) == []
    await second.ack()
    assert await taken(consumer) == [7]
    await consumer.ack([first, third])
    assert await taken(consumer) == [8]


async def test_a_raised_limit_is_used_at_once(jet: pelton.Jet, stream: pelton.Stream) -> None:
    config = {"durable_name": "c", "filter_subject": "s.a"}
    consumer = await stream.create_consumer(**config, max_ack_pending_per_subject=1)
    await jet.publish_batch([("s.a", b"")] * 2)
    assert await taken(consumer) == [1]
    await stream.create_consumer(**config, max_ack_pending_per_subject=3)
    assert await taken(consumer) == [2, 3]
    await stream.create_consumer(**config, max_ack_pending_per_subject=2)
    assert await taken(consumer) == []


async def test_a_lowered_limit_lets_those_out_finish_first(jet: pelton.Jet, stream: pelton.Stream) -> None:
    config = {"durable_name": "c", "filter_subject": "s.a"}
    consumer = await stream.create_consumer(**config, max_ack_pending_per_subject=2)
    first, second = await consumer.fetch(10)
    await stream.create_consumer(**config, max_ack_pending_per_subject=1)
    await first.ack()
    assert await taken(consumer) == []
    await second.ack()
    assert await taken(consumer) == [3]


class TestMessagesThatVanish:
    async def test_while_delivered_the_holder_is_waited_for(
        self, stream: pelton.Stream, consumer: pelton.Consumer, runtime: ManualRuntime
    ) -> None:
        """Its message is gone, but its holder still works: no other may start on the subject."""
        a, b, _ = await consumer.fetch(10)
        await stream.delete_message(1)
        await stream.delete_message(4)
        assert await taken(consumer) == []
        await a.ack()
        assert await taken(consumer) == [2]
        await b.nak()
        assert await taken(consumer) == [5]
        runtime.clock.advance(10)
        assert sorted(await taken(consumer)) == [2, 5, 6]

    async def test_while_parked(self, stream: pelton.Stream, consumer: pelton.Consumer) -> None:
        a, b, _ = await consumer.fetch(10)
        await stream.delete_message(2)
        await stream.delete_message(5)
        assert (await consumer.info()).num_pending == 1
        await consumer.ack([a, b])
        assert await taken(consumer) == [3]
        assert (await consumer.info()).num_pending == 0

    async def test_while_ready(self, stream: pelton.Stream, consumer: pelton.Consumer) -> None:
        a, *_ = await consumer.fetch(10)
        await a.ack()
        await stream.delete_message(2)
        assert (await consumer.info()).num_pending == 2
        assert await taken(consumer, 1) == [3]

    async def test_all_of_them(self, jet: pelton.Jet, stream: pelton.Stream, consumer: pelton.Consumer) -> None:
        a, *_ = await consumer.fetch(10)
        await stream.purge()
        assert (await consumer.info()).num_pending == 0
        await jet.publish_batch([("s.a", b""), ("s.d", b"")])
        assert await taken(consumer) == [8]
        await a.ack()
        assert await taken(consumer) == [7]
        assert (await consumer.info()).num_pending == 0


async def test_a_filter_that_changes_drops_what_waits_and_no_longer_matches(
    stream: pelton.Stream, consumer: pelton.Consumer
) -> None:
    a, b, _ = await consumer.fetch(10)
    await a.ack()
    changed = await stream.create_consumer(
        durable_name="c", max_ack_pending_per_subject=1, ack_wait=10, filter_subject="s.b"
    )
    assert (await changed.info()).num_pending == 1
    assert await taken(consumer) == []
    await b.ack()
    assert await taken(consumer) == [5]


async def test_max_ack_pending_counts_all_subjects(jet: pelton.Jet, stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1, max_ack_pending=2)
    a, b = await consumer.fetch(10)
    assert (a.subject, b.subject) == ("s.a", "s.b")
    await b.ack()
    assert await taken(consumer) == [6]
    await a.ack()
    assert await taken(consumer) == [5]
    assert (await consumer.info()).num_pending == 2


async def test_a_long_queue_of_one_subject_hides_no_other(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("t", subjects=["t.>"])
    await jet.publish_batch([("t.hot", b"")] * 3000 + [("t.cold", b"")])
    consumer = await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
    assert await taken(consumer, 2) == [1, 3001]
    assert (await consumer.info()).num_pending == 2999


async def test_the_order_of_a_subject_holds_across_openers(tmp_path: object) -> None:
    path = f"{tmp_path}/store"
    async with pelton.open(path) as one, pelton.open(path) as two:
        stream = await one.create_stream("s", subjects=["s.>"], retention="workqueue")
        await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
        consumers = [await (await jet.stream("s")).consumer("c") for jet in (one, two)]
        await one.publish_batch([(f"s.{number % 3}", b"%d" % number) for number in range(30)])
        seen: dict[str, list[int]] = {}
        for turn in range(40):
            for message in await consumers[turn % 2].fetch(2, no_wait=True):
                seen.setdefault(message.subject, []).append(int(message.data))
                await message.ack()
        assert {subject: sorted(numbers) for subject, numbers in seen.items()} == seen
        assert sum(map(len, seen.values())) == 30


@pytest.mark.parametrize(("limit", "room"), [(1, 1000), (2, 1000), (2, 12)])
async def test_many_at_once_are_treated_as_each_by_itself(jet: pelton.Jet, limit: int, room: int) -> None:
    """A pull with a limit of bytes looks at message after message; acks of one message are applied one by one."""
    draw, backend = random.Random(limit), jet.backend
    stream = await jet.create_stream("s", subjects=["s.>"])
    for name in ("many", "each"):
        await stream.create_consumer(durable_name=name, max_ack_pending_per_subject=limit, max_ack_pending=room)
    database = backend._db  # type: ignore[attr-defined]  # the engine's, whose rows are compared
    ids = dict(database.execute("SELECT config ->> 'name', id FROM consumers").fetchall())
    held: dict[str, list[Delivered]] = {"many": [], "each": []}
    for _ in range(12):
        await jet.publish_batch([(f"s.{draw.randrange(20)}", b"x") for _ in range(draw.randrange(40))])
        many = await backend.pull("s", "many", PullRequest(batch=30, no_wait=True))
        each = await backend.pull("s", "each", PullRequest(batch=30, max_bytes=1 << 20, no_wait=True))
        held["many"] += many
        held["each"] += each
        assert [(d.seq, d.consumer_seq, d.num_pending) for d in many] == [
            (d.seq, d.consumer_seq, d.num_pending) for d in each
        ]
        settled = draw.sample(range(len(held["many"])), len(held["many"]) * 2 // 3)
        acks = {name: [AckOp(seq=held[name][n].seq, consumer_seq=held[name][n].consumer_seq) for n in settled]
                for name in held}  # fmt: skip
        assert not any(await backend.ack("s", "many", acks["many"]))
        for ack in acks["each"]:
            assert await backend.ack("s", "each", [ack]) == [None]
        for name, of in held.items():
            held[name] = [one for n, one in enumerate(of) if n not in settled]
        for table in ("claims", "ready", "pending"):
            columns = "subject, seq" if table == "ready" else "subject, seq, held" if table == "claims" else "seq, dseq"
            rows = [
                sorted(database.execute(f"SELECT {columns} FROM {table} WHERE consumer=?", (ids[name],)).fetchall())
                for name in held
            ]
            assert rows[0] == rows[1]
