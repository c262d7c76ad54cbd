"""The read model says the same of a file, which another process writes meanwhile, and of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

import pelton
from pelton import observe
from pelton.testing import manual_runtime


async def test_streams_and_consumers(jet: pelton.Jet, look: pelton.Jet) -> None:
    orders = await jet.create_stream("orders", subjects=["orders.>"])
    for number in range(5):
        await jet.publish(f"orders.{number}", b"12345")
    worker = await orders.create_consumer(durable_name="worker", filter_subject="orders.>")
    first, _ = await worker.fetch(2)
    await first.ack()
    (stream,) = await observe.stream_summaries(look)
    assert (stream.name, stream.kind, stream.messages, stream.last_seq, stream.num_subjects, stream.consumers) == (
        "orders", "stream", 5, 5, 5, 1,
    )  # fmt: skip
    assert stream.bytes > 25
    assert stream.last_at.endswith("Z")
    (consumer,) = await observe.consumer_summaries(look)
    assert [consumer] == await observe.consumer_summaries(look, "orders")
    assert (consumer.pending, consumer.ack_pending, consumer.redelivered, consumer.lag) == (3, 1, 0, 4)
    assert (consumer.delivered_seq, consumer.ack_floor, consumer.durable, consumer.paused) == (2, 1, True, False)
    assert consumer.filters == ("orders.>",)
    with pytest.raises(pelton.StreamNotFoundError):
        await observe.consumer_summaries(look, "nothing")


async def test_buckets_and_objects(jet: pelton.Jet, look: pelton.Jet) -> None:
    settings = await jet.create_bucket("settings", history=2, ttl=3600)
    await settings.put("a", b"1")
    await settings.put("a", b"2")
    await settings.put("b", b"3")
    await (await jet.create_objects("files")).put("a", b"content")
    (bucket,) = await observe.bucket_summaries(look)
    assert (bucket.name, bucket.keys, bucket.values, bucket.history, bucket.ttl) == ("settings", 2, 3, 2, 3600)
    (objects,) = await observe.object_summaries(look)
    assert objects.name == "files"
    assert objects.bytes > 7


async def test_locks_and_elections(jet: pelton.Jet, look: pelton.Jet) -> None:
    assert await observe.lock_summaries(look) == []
    assert await observe.election_summaries(look) == []
    async with (
        jet.lock("car1", ttl=30) as held,
        jet.semaphore("bays", slots=2, ttl=30),
        jet.elect("boss", name="Ada") as term,
    ):
        semaphore, lock = sorted(await observe.lock_summaries(look), key=lambda one: one.name)
        assert (lock.kind, lock.name, lock.token, lock.ttl, lock.waiting) == ("lock", "car1", held.token, 30, 0)
        assert (semaphore.kind, semaphore.name, semaphore.slot) == ("semaphore", "bays", 0)
        assert lock.holder
        assert lock.since.endswith("Z")
        (election,) = await observe.election_summaries(look)
        assert (election.election, election.leader, election.token) == ("boss", "Ada", term.token)
        assert await observe.election_summaries(look, "ELECTION_boss", "boss") == [election]
    assert await observe.lock_summaries(look) == []
    (election,) = await observe.election_summaries(look)
    assert (election.leader, election.token) == ("", 0)


async def test_a_holder_that_died_holds_nothing_once_its_time_is_over(tmp_path: Path) -> None:
    runtime = manual_runtime()
    path = tmp_path / "a.pelton"
    async with pelton.open(path, runtime=runtime) as jet:
        await jet.backend.call(
            pelton.StreamCreate(
                config=pelton.StreamConfig(
                    name="KV_pelton_locks",
                    subjects=("$KV.pelton_locks.>",),
                    max_msgs_per_subject=1,
                    allow_direct=True,
                    allow_msg_ttl=True,
                )
            )
        )
        await jet.publish("$KV.pelton_locks.lock.car1", b'{"owner":"x","ttl":5,"who":"one"}')
    async with pelton.open(path, runtime=runtime, read_only=True) as look:
        assert [lock.holder for lock in await observe.lock_summaries(look)] == ["one"]
        runtime.clock.advance(6)
        assert await observe.lock_summaries(look) == []


@pytest.mark.parametrize("exclusive", [False, True])
async def test_queues_jobs_and_dead_letters(jet: pelton.Jet, look: pelton.Jet, exclusive: bool) -> None:
    assert await look.queue_names() == []
    garage = await jet.queue("garage", exclusive=exclusive)

    @garage.job(max_attempts=1)
    async def repair(car: str) -> str:
        if car == "wreck":
            raise ValueError("nothing left")
        return car

    for car in ("a", "b", "wreck"):
        await repair.enqueue(car, key=car)
    assert await look.queue_names() == ["garage"]
    summary = await observe.queue_summary(look, "garage")
    assert (summary.pending, summary.running, summary.completed, summary.exclusive) == (3, 0, 0, exclusive)
    assert summary.oldest_at.endswith("Z")
    assert [(job.job, job.key, job.state) async for job in observe.unfinished_jobs(look, "garage")] == [
        ("repair", "a", "pending"), ("repair", "b", "pending"), ("repair", "wreck", "pending"),
    ]  # fmt: skip
    await garage.work(until_empty=True, handle_signals=False)
    (summary,) = await observe.queue_summaries(look)
    assert (summary.pending, summary.completed, summary.failed, summary.dead_letters) == (0, 2, 1, 1)
    assert summary.per_minute == 3
    assert 0 <= summary.run.median <= summary.run.p95 <= summary.run.longest < 60
    assert (summary.oldest_at, summary.last_ended_at[-1]) == ("", "Z")
    await garage.schedule("nightly", repair, args=("c",), cron="0 0 0 1 1 *")
    await garage.options(delay=600).enqueue(repair, "d")
    assert (await observe.queue_summary(look, "garage")).oldest_at == ""
    (worker,) = await observe.worker_summaries(look, "garage")
    assert (worker.queue, worker.ended, worker.failed, worker.last_job) == ("garage", 3, 1, "repair")
    (letter,) = [one async for one in observe.dead_letters(look, "garage")]
    assert (letter.outcome.key, letter.outcome.state) == ("wreck", "failed")
    job = await observe.job_details(look, "garage", letter.outcome.id)
    assert (job.state, job.last_error) == ("failed", letter.outcome.error)
    for missing in ("999", "x"):
        with pytest.raises(pelton.JobNotFoundError):
            await observe.job_details(look, "garage", missing)
    with pytest.raises(pelton.QueueNotFoundError):
        await observe.queue_summary(look, "nothing")


async def test_what_a_worker_holds_is_running(jet: pelton.Jet, look: pelton.Jet) -> None:
    garage = await jet.queue("garage", exclusive=True)

    @garage.job
    async def repair(car: str) -> None: ...

    await repair.enqueue("a", key="a")
    await repair.enqueue("a", key="a")
    async with garage.claims() as claims:
        (claimed,) = await claims.take(5, timeout=5)
        summary = await observe.queue_summary(look, "garage")
        assert (summary.running, summary.pending) == (1, 1)
        assert (await observe.job_details(look, "garage", claimed.id)).state == "running"


async def test_jobs_of_tenants_and_ranks_are_counted_by_whoever_looks_and_looking_makes_nothing(
    jet: pelton.Jet, look: pelton.Jet
) -> None:
    mail = await jet.queue("mail")

    @mail.job
    async def send(number: int) -> None: ...

    for number in range(9):
        await mail.options(tenant=f"t{number % 3}").enqueue(send, number)
        await mail.options(priority=number % 4).enqueue(send, number)
    await mail.work(max_jobs=4, handle_signals=False)
    made = await jet.stream_names(), await (await jet.stream("JOBS_mail")).consumer_names()
    counts = await mail.counts()
    assert (counts.pending, counts.completed) == (14, 4)
    for one in (jet, look):
        summary = await observe.queue_summary(one, "mail")
        assert (summary.pending, summary.completed) == (14, 4)
    assert made == (await jet.stream_names(), await (await jet.stream("JOBS_mail")).consumer_names())
    assert await (await look.queue("mail")).counts() == counts


async def test_the_store_as_a_whole(address: str, jet: pelton.Jet, look: pelton.Jet) -> None:
    await jet.create_stream("orders", subjects=["orders.>"])
    await jet.publish("orders.1", b"x" * 1000)
    await jet.create_bucket("b")
    await jet.create_objects("o")
    await jet.queue("q")
    path = "" if "://" in address else address
    store = await observe.store_summary(look, path)
    assert (store.queues, store.buckets, store.object_stores) == (1, 1, 1)
    # On a cluster, where the tokens of the queue begin is stored, too.
    assert store.messages == (1 if path else 2)
    assert store.streams >= 6
    assert store.bytes > 1000
    assert (store.file_bytes > 0) == (store.log_bytes > 0) == bool(path)


async def test_a_queue_without_jobs_is_shown_with_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pelton.open("memory:") as jet:
        await jet.queue("garage")
        asked = []
        for verb in ("call", "direct_get"):
            real = getattr(jet.backend, verb)
            monkeypatch.setattr(jet.backend, verb, lambda *args, real=real: asked.append(args) or real(*args))
        assert (await observe.queue_summary(jet, "garage")).pending == 0
        assert len(asked) <= 32
