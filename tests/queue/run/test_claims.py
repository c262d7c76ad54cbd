"""Jobs taken in batches: each settled independently, with the same records as by a worker."""

import asyncio

import msgspec
import pytest

import pelton
from pelton import Jet
from pelton.api import ConfigError, JobCancelledError, JobResultError, PermanentJobError, RetryJob
from pelton.queue import ClaimedJob, Claims, JobRules, Queue
from tests.conformance.cases.eventually import eventually
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, ended, waiting

RULES = JobRules(max_attempts=2, backoff=FAST)
PATIENT = 20.0


async def enqueue(queue: Queue, count: int, keys: int = 0) -> None:
    def paint(n: int) -> None: ...

    job = queue.jobs_by_name.get("paint") or queue.job(paint)
    await job.enqueue_many([(n,) for n in range(count)], keys=[f"k{n % keys}" if keys else "" for n in range(count)])


async def complete(claims: Claims, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
    for job in jobs:
        job.complete(msgspec.json.decode(job.args)["n"])
    return await claims.settle(jobs)


@ON_BOTH
async def test_a_batch_is_written_down_as_by_a_worker(queue: Queue) -> None:
    await enqueue(queue, 5)
    async with queue.claims() as claims:
        jobs = await claims.take(3, timeout=PATIENT)
        assert [(job.id, job.job, job.attempt, job.last_error) for job in jobs[:1]] == [("1", "paint", 1, "")]
        assert jobs[0].token < jobs[1].token
        assert not await claims.is_empty()
        assert await complete(claims, jobs) == []
        assert await complete(claims, await claims.take(timeout=PATIENT)) == []
        assert await claims.take() == []
        assert await claims.is_empty()
    outcomes = await ended(queue)
    assert [(o.id, o.state, o.value(), o.attempt) for o in outcomes] == [
        (str(n + 1), "completed", n, 1) for n in range(5)
    ]
    assert {o.worker for o in outcomes} == {claims.worker}
    assert all(o.enqueued_at <= o.started_at <= o.finished_at for o in outcomes)


async def test_nothing_is_taken_where_leases_are_not_kept(queue: Queue) -> None:
    await enqueue(queue, 1)
    claims = queue.claims()
    with pytest.raises(ConfigError, match="async with"):
        await claims.take()
    async with claims:
        pass
    with pytest.raises(ConfigError, match="async with"):
        await claims.take()
    assert (await queue.counts()).pending == 1


@ON_BOTH
async def test_each_job_of_a_batch_ends_by_itself(jet: Jet, queue: Queue) -> None:
    await jet.create_stream("out", subjects=["out.>"])
    await enqueue(queue, 6)
    async with queue.claims(RULES) as claims:
        jobs = await claims.take(timeout=PATIENT)
        jobs[0].emit("out.0", b"done", {"Color": "red"})
        jobs[0].complete()
        jobs[1].fail(PermanentJobError("broken"))
        jobs[2].fail(JobCancelledError("3"))
        jobs[3].fail(RetryJob(delay=0.01))
        jobs[4].emit("nowhere.4", b"lost")
        jobs[4].complete()
        assert await claims.settle(jobs) == []
        # The last one has no reported end: it stays held.
        again: list[ClaimedJob] = []
        while len(again) < 2:
            again += await claims.take(timeout=PATIENT)
        assert sorted((job.id, job.attempt) for job in again) == [("4", 2), ("5", 2)]
        assert {job.last_error.partition(":")[0] for job in again} == {"RetryJob", "NoStreamForSubjectError"}
        for job in again:
            job.fail(ValueError("no"))
        await claims.settle(again)
        jobs[5].complete()
        assert await claims.settle(jobs) == []
    states = {o.id: (o.state, o.error) for o in await ended(queue)}
    assert states == {
        "1": ("completed", ""),
        "2": ("failed", "PermanentJobError: broken"),
        "3": ("cancelled", states["3"][1]),
        "4": ("failed", "ValueError: no (attempt 2 of 2)"),
        "5": ("failed", "ValueError: no (attempt 2 of 2)"),
        "6": ("completed", ""),
    }
    assert sorted([letter.outcome.id async for letter in queue.dead_letters()]) == ["2", "4", "5"]
    out = await jet.stream("out")
    assert (await out.info()).state.messages == 1
    assert (await out.get_message(1)).headers["Color"] == "red"


@ON_BOTH
async def test_a_batch_has_one_job_a_key_in_order(keyed: Queue) -> None:
    await enqueue(keyed, 12, keys=4)
    seen: list[int] = []
    async with keyed.claims(RULES) as claims:
        while len(seen) < 12:
            jobs = await claims.take(timeout=PATIENT)
            assert len({job.key for job in jobs}) == len(jobs) <= 4
            seen += [msgspec.json.decode(job.args)["n"] for job in jobs]
            assert await complete(claims, jobs) == []
        assert await claims.is_empty()
    assert sorted(seen) == list(range(12))
    assert all([n for n in seen if n % 4 == key] == [key, key + 4, key + 8] for key in range(4))


@ON_BOTH
async def test_what_is_not_settled_is_handed_back(queue: Queue) -> None:
    await enqueue(queue, 2)
    async with queue.claims(RULES) as claims:
        assert len(await claims.take(timeout=PATIENT)) == 2
    async with queue.claims(RULES) as claims:
        jobs = await claims.take(1, timeout=PATIENT)
        jobs += await claims.take(1, timeout=PATIENT)
        assert {job.attempt for job in jobs} == {1}
        await complete(claims, jobs)


@ON_BOTH
async def test_jobs_ahead_are_those_of_the_next_takes(queue: Queue) -> None:
    await enqueue(queue, 10)
    async with queue.claims(RULES) as claims:
        taken = [await claims.take(3, timeout=PATIENT, ahead=4)]
        while claims.ahead:
            taken.append(await claims.take(3))
        assert [[job.id for job in jobs] for jobs in taken] == [["1", "2", "3"], ["4", "5", "6"], ["7"]]
        assert await complete(claims, [job for jobs in taken for job in jobs]) == []
    assert [(info.id, info.attempt) for info in await waiting(queue)] == [("8", 0), ("9", 0), ("10", 0)]


@ON_BOTH
async def test_no_job_ahead_keeps_others_from_its_key(keyed: Queue) -> None:
    await enqueue(keyed, 3, keys=3)
    async with keyed.claims(RULES) as claims:
        assert len(await claims.take(1, timeout=PATIENT, ahead=2)) == 1
        assert claims.ahead == 0


@ON_BOTH
async def test_jobs_ahead_are_given_back_to_others(queue: Queue, another: OpenQueue) -> None:
    await enqueue(queue, 3)
    elsewhere = await another("garage")
    async with queue.claims(RULES) as claims, elsewhere.claims(RULES) as others:
        (first,) = await claims.take(1, timeout=PATIENT, ahead=2)
        assert claims.ahead == 2
        assert await others.take() == []
        await claims.give_back_ahead()
        assert claims.ahead == 0
        found: list[ClaimedJob] = []
        while len(found) < 2:
            found += await others.take(timeout=PATIENT)
        assert {job.attempt for job in found} == {1}, "giving back is no attempt"
        assert await complete(claims, [first]) == []
        assert await complete(others, found) == []
    assert len(await ended(queue)) == 3


async def test_jobs_ahead_are_kept_if_they_cannot_be_given_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await enqueue(queue, 3)
    async with queue.claims(RULES) as claims:
        (first,) = await claims.take(1, ahead=2)
        with monkeypatch.context() as patched:
            patched.setattr(claims._held, "settle", _full)
            with pytest.raises(pelton.StoreError, match="disk full"):
                await claims.give_back_ahead()
        assert claims.ahead == 2
        await complete(claims, [first, *await claims.take(2)])
    assert {outcome.attempt for outcome in await ended(queue)} == {1}


async def _full(endings: object) -> None:
    raise pelton.StoreError("disk full")


@ON_BOTH
async def test_jobs_ahead_heed_a_pause(queue: Queue) -> None:
    await enqueue(queue, 2)
    async with queue.claims(RULES) as claims:
        (first,) = await claims.take(1, timeout=PATIENT, ahead=1)
        await queue.pause(job="paint")

        async def heard() -> bool:
            return bool(claims._orders.pause_of("", "paint"))

        await eventually(heard, True)
        assert await claims.take(1) == []
        await complete(claims, [first])
        await queue.resume(job="paint")
        (second,) = await claims.take(1, timeout=PATIENT)
        assert (second.id, second.attempt) == ("2", 1)
        await complete(claims, [second])


@ON_BOTH
async def test_one_job_is_handed_back_and_its_neighbour_is_done(queue: Queue) -> None:
    await enqueue(queue, 2)
    async with queue.claims(RULES) as claims:
        jobs = await claims.take(1, timeout=PATIENT)
        jobs += await claims.take(1, timeout=PATIENT)
        jobs[0].hand_back()
        jobs[1].complete()
        assert await claims.settle(jobs) == []
        (again,) = await claims.take(timeout=PATIENT)
        assert (again.id, again.attempt) == (jobs[0].id, 1)
        await complete(claims, [again])
        assert (await queue.counts()).completed == 2


async def test_a_lost_lease_is_told_and_nothing_of_it_counts(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("g", lease=1)
    await enqueue(queue, 2)
    async with queue.claims(RULES) as stuck:
        jobs = await stuck.take()
        # Its keeper is paused, as its process would be.
        stuck._held.stop()
        async with (await another("g")).claims(RULES) as claims:
            taken = await claims.take(timeout=PATIENT)
            assert [(job.id, job.attempt) for job in taken] == [("1", 2), ("2", 2)]
            assert await complete(stuck, jobs) == jobs
            assert all(job.lost for job in jobs)
            await complete(claims, taken)
    assert {o.worker for o in await ended(queue)} == {claims.worker}


async def test_a_job_that_was_lost_and_is_claimed_again_is_settled(jet: Jet) -> None:
    queue = await jet.queue("g", lease=1)
    await enqueue(queue, 1)
    async with queue.claims(RULES) as claims:
        [first] = await claims.take()
        claims._held.stop()
        [again] = await claims.take(timeout=PATIENT)
        assert (again.id, again.attempt) == (first.id, 2)
        assert await complete(claims, [first]) == [first]
        assert await complete(claims, [again]) == []
        assert [(o.state, o.attempt) for o in await ended(queue)] == [("completed", 2)]


@ON_BOTH
async def test_jobs_whose_take_was_cancelled_are_the_next_ones(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await enqueue(queue, 2)
    for _ in range(3):
        async with queue.claims(RULES) as claims:
            assert len(await claims.take(timeout=PATIENT)) > 0
    looking = asyncio.Event()

    async def never(delivered: object) -> None:
        looking.set()
        await asyncio.Event().wait()

    async def cancelled(claims: Claims) -> None:
        looking.clear()
        with monkeypatch.context() as patch:
            patch.setattr(claims._job_source, "earlier_attempt", never)
            taking = asyncio.create_task(claims.take(timeout=PATIENT))
            await asyncio.wait_for(looking.wait(), PATIENT)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async with queue.claims(RULES) as claims:
        await cancelled(claims)
        jobs = await claims.take(1, timeout=PATIENT) + await claims.take(1, timeout=PATIENT)
        assert {(job.id, job.attempt) for job in jobs} == {("1", 1), ("2", 1)}
    async with queue.claims(RULES) as claims:
        await cancelled(claims)
    async with queue.claims(RULES) as claims:
        # They were handed back, which was no attempt.
        jobs = await claims.take(timeout=PATIENT)
        assert {job.attempt for job in jobs} == {1}
        await complete(claims, jobs)


async def test_leases_are_kept_while_a_batch_runs(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("g", lease=1)
    await enqueue(queue, 1)
    async with queue.claims(RULES) as claims, (await another("g")).claims(RULES) as others:
        jobs = await claims.take()
        lease = jobs[0].lease
        assert lease is not None
        first = lease.clock.confirmed

        async def extended() -> bool:
            assert await others.take() == []
            return lease.clock.confirmed > first + 1

        await eventually(extended, True)
        assert await complete(claims, jobs) == []


async def test_jobs_whose_workers_died_end_in_the_dead_letters(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("g", lease=0.1)
    await enqueue(queue, 1)
    for _ in range(2):
        async with (await another("g")).claims(RULES) as dead:
            [taken] = await dead.take(timeout=PATIENT)
            dead._held.release([taken])  # As if it had died: neither kept, nor settled, nor handed back.
    async with queue.claims(RULES) as claims:

        async def is_over() -> bool:
            assert await claims.take() == []
            return await claims.is_empty()

        await eventually(is_over, True)
    assert [(o.state, o.attempt) for o in await ended(queue)] == [("failed", 2)]
    assert [letter.envelope.job async for letter in queue.dead_letters()] == ["paint"]


@pytest.mark.parametrize(
    "no_job", [b"no job", b"null", b'{"job":"\xcf"}', b'{"job":' + b"[" * 3000], ids=["text", "null", "utf-8", "deep"]
)
async def test_what_is_unknown_or_no_job_is_not_returned(
    no_job: bytes, jet: Jet, queue: Queue, another: OpenQueue
) -> None:
    await enqueue(queue, 1)
    await jet.publish(queue.names.free_subject, no_job)
    async with (await another("garage")).claims() as claims:
        assert await claims.take() == []
    assert [(o.id, o.state) for o in await ended(queue)] == [("2", "failed")]
    [info] = await waiting(queue)
    assert info.last_error.startswith("UnknownJobError")


async def test_taking_waits_for_a_job(keyed: Queue, another: OpenQueue) -> None:
    async with keyed.claims(RULES) as claims:
        taking = asyncio.ensure_future(claims.take(timeout=PATIENT))
        await enqueue(await another("keyed"), 1, keys=1)
        assert await complete(claims, await taking) == []


async def test_what_cannot_be_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="max_attempts"):
        queue.claims(JobRules(max_attempts=0))
    with pytest.raises(ConfigError, match="claims of queue 'garage': rules is 5"):
        queue.claims(5)  # type: ignore[arg-type]
    await enqueue(queue, 1)
    async with queue.claims() as claims:
        with pytest.raises(ConfigError, match="the timeout of take is 'x'"):
            await claims.take(timeout="x")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the limit of take is 0"):
            await claims.take(0)
        [job] = await claims.take()
        with pytest.raises(JobResultError, match="can't be stored"):
            job.complete(object())
        assert not job.is_decided


def test_the_blocking_face(path: str) -> None:
    with pelton.sync.open(path) as jet:
        queue = jet.queue("garage")

        @queue.job
        def paint(n: int) -> None: ...

        paint.enqueue_many([(n,) for n in range(3)])
        with queue.claims() as claims:
            while jobs := claims.take(2):
                for job in jobs:
                    job.complete(job.key)
                assert claims.settle(jobs) == []
        assert queue.counts().completed == 3


@ON_BOTH
async def test_a_message_under_no_subject_fails_its_job_alone(jet: Jet) -> None:
    queue = await jet.queue("garage")
    await jet.create_stream("bills", subjects=["bills.>"])

    @queue.job(max_attempts=1)
    async def paint() -> None: ...

    await paint.enqueue()
    await paint.enqueue()
    async with queue.claims() as claims:
        bad, good = await claims.take(2, timeout=5)
        with pytest.raises(pelton.ConfigError, match="is not a subject"):
            bad.emit("bills..1", b"")
        bad.emit_encoded("bills..1", b"", None)
        good.emit("bills.1", b"")
        for job in (bad, good):
            job.complete()
        assert await claims.settle([bad, good]) == []
    states = {outcome.id: outcome.state async for outcome in queue.history()}
    assert states == {bad.id: "failed", good.id: "completed"}
    assert (await (await jet.stream("bills")).info()).state.messages == 1


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
async def test_what_is_paused_is_not_taken(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    elsewhere = await another("garage")
    await queue.pause(key="car.1")
    await queue.pause(job="paint")
    held = [await queue.options(key=key).enqueue(job, n=1) for key, job in (("car.1", "wash"), ("car.2", "paint"))]
    free = await queue.options(key="car.3").enqueue("wash", n=2)
    async with queue.claims(RULES) as claims:
        assert [job.id for job in await claims.take(timeout=PATIENT)] == [free.id]
        assert not await claims.take(timeout=0.3)
        await elsewhere.resume(key="car.1")
        await elsewhere.resume(job="paint")
        taken = list[ClaimedJob]()
        while len(taken) < 2:
            taken += await claims.take(timeout=PATIENT)
        assert {job.id for job in taken} == {handle.id for handle in held}
        assert {job.attempt for job in taken} == {1}, "waiting for it is no attempt"


@ON_BOTH
async def test_a_claimed_job_hears_that_it_is_cancelled(jet: Jet, another: OpenQueue) -> None:
    queue = await jet.queue("garage")
    await enqueue(queue, 2)
    elsewhere = await another("garage")
    async with queue.claims(RULES) as claims:
        first, second = await claims.take(timeout=PATIENT)
        assert await elsewhere.cancel(second.id, reason="sold")

        async def heard() -> tuple[bool, bool]:
            return first.cancelled, second.cancelled

        await eventually(heard, (False, True))
        first.complete()
        second.fail(pelton.Cancel("sold"))
        # On a cluster it has ended already.
        assert {job.id for job in await claims.settle([first, second])} <= {second.id}
    assert {outcome.id: outcome.state for outcome in await ended(queue)} == {"1": "completed", "2": "cancelled"}
