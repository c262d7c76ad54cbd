"""Leases: kept while the job's own thread is busy, reported in time when lost, fenced when it is too late."""

import asyncio
import ctypes
import signal
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

import pelton
from pelton import Jet
from pelton.api import AckOp, Delivered, PeltonError
from pelton.queue import JobContext, JobRules, Queue
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.records import records_of
from pelton.queue.run.leases import LeaseKeeper, SharedLease
from pelton.runtime import LeaseClock, SystemClock, system_runtime
from pelton.testing.clock import ManualClock
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import Child, drain, ended, open_store, working
from tests.queue.roles import QUEUE, register
from tests.stopping import stand_still


@pytest.fixture
def several_leases(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Block the calling thread for longer than a lease, until it was extended that often."""
    extensions = threading.Semaphore(0)
    real = LeaseClock.confirm

    def confirm(self: LeaseClock, asked: float) -> None:
        real(self, asked)
        extensions.release()

    monkeypatch.setattr(LeaseClock, "confirm", confirm)

    def block() -> None:
        for _ in range(4):
            assert extensions.acquire(timeout=60)

    return block


@ON_BOTH
async def test_a_job_that_blocks_the_loop_keeps_its_lease(
    jet: Jet, path: str, several_leases: Callable[[], None]
) -> None:
    """The other worker has its own loop, on a thread, so that it could take the job."""
    keyed = await jet.queue("keyed", exclusive=True, lease=0.9)
    stop = threading.Event()
    starts = list[str]()

    async def job(context: JobContext) -> int:
        starts.append(context.worker)
        if len(starts) == 1:
            several_leases()
        return context.attempt

    def rival() -> None:
        async def work() -> None:
            async with open_store(path) as jet:
                queue = await jet.queue("keyed")
                queue.job(job)
                task = asyncio.create_task(queue.work(handle_signals=False))
                await asyncio.to_thread(stop.wait, 100)
                queue.stop()
                await task

        asyncio.run(work())

    registered = keyed.job(job)
    handles = [await registered.enqueue(key="k") for _ in range(2)]
    thread = asyncio.create_task(asyncio.to_thread(rival))
    async with working(keyed, concurrency=1):
        outcomes = await asyncio.gather(*(handle.outcome(timeout=60) for handle in handles))
    stop.set()
    await thread
    assert [outcome.value() for outcome in outcomes] == [1, 1]
    assert len(starts) == 2


@ON_BOTH
async def test_a_long_job_on_a_thread_keeps_its_lease(
    jet: Jet, another: OpenQueue, several_leases: Callable[[], None]
) -> None:
    keyed = await jet.queue("keyed", exclusive=True, lease=0.9)
    other = await another("keyed")

    def job(context: JobContext) -> int:
        several_leases()
        return context.attempt

    handle = await keyed.job(job).enqueue(key="k")
    other.job(job)
    async with working(keyed, other):
        outcome = await handle.outcome(timeout=60)
    assert outcome.value() == 1
    assert len(await ended(keyed)) == 1


async def opened(path: str, lease: float) -> tuple[Jet, Queue]:
    jet = await open_store(path)
    queue = await jet.queue(QUEUE, exclusive=True, lease=lease)
    register(queue)
    return jet, queue


@ON_BOTH
@pytest.mark.parametrize("job", ["endless", "thread_until_lost"])
async def test_a_paused_worker_is_replaced_told_and_refused(path: str, job: str) -> None:
    jet, queue = await opened(path, 1)
    await jet.create_stream("effects", subjects=["effects.>"])
    handle = await queue.jobs_by_name[job].enqueue(key="k")
    with Child("work", path, "1") as first:
        token = int((await first.says("started 1")).split()[2])
        stand_still(first.process.pid, path)
        with Child("work", path, "1") as second:
            started = (await second.says("started 2")).split()
            assert int(started[2]) > token
            assert (await handle.info()).state != "completed"
            first.process.send_signal(signal.SIGCONT)
            assert "lost" in await first.says("cancelled" if job == "endless" else "lost")
            first.process.send_signal(signal.SIGTERM)
            assert await first.ends() == 0
            assert (await handle.info()).state != "completed"  # what the first had to say was refused
            second.process.kill()
    assert (await (await jet.stream("effects")).info()).state.messages == 0
    await jet.close()


@ON_BOTH
async def test_code_that_keeps_the_gil_beyond_the_lease_is_told_when_it_comes_back(jet: Jet, path: str) -> None:
    """Nothing in its process can extend the lease; nor can its event loop tell the job, which does not await."""
    queue = await jet.queue(QUEUE, exclusive=True, lease=0.3)
    told = list[bool]()

    @queue.job
    async def quick(context: JobContext, number: int) -> int:
        if not told:
            with Child("work", path, "0.3"):
                end = time.monotonic() + 40
                while not context.lost and time.monotonic() < end:
                    ctypes.PyDLL(None).usleep(500_000)
                    time.sleep(0.02)
            told.append(context.lost)
        return number

    handle = await quick.enqueue(0, key="k")
    async with working(queue):
        assert await handle.value(timeout=60) == 0
    assert told == [True]


@ON_BOTH
async def test_the_death_of_its_worker_counts_as_an_attempt(path: str) -> None:
    jet, queue = await opened(path, 1)
    handle = await queue.jobs_by_name["quick"].enqueue(0, key="k")
    thread = await queue.jobs_by_name["thread"].enqueue(key="k2")
    del handle
    with Child("work", path, "1") as first:
        await first.says("started 1")
    with Child("work", path, "1") as second:
        await second.says("started 2")
        second.tell("finish")
        assert (await thread.outcome(timeout=60)).value() == "attempt 2"
    await jet.close()


@ON_BOTH
async def test_a_job_that_kills_its_worker_is_dead_in_the_end_and_its_key_goes_on(path: str) -> None:
    jet, queue = await opened(path, 1)
    poison = await queue.jobs_by_name["poison"].enqueue(key="k")
    after = await queue.jobs_by_name["quick"].enqueue(0, key="k")
    for attempt in (1, 2, 3):
        with Child("work", path, "1") as child:
            await child.says(f"started {attempt}")
            assert await child.ends() == 9
    with Child("work", path, "1"):
        outcome = await poison.outcome(timeout=60)
        assert (outcome.state, outcome.attempt) == ("failed", 3)
        assert "died" in outcome.error
        assert "attempt 3 of 3" in outcome.error
        assert (await after.outcome(timeout=60)).state == "completed"
    assert [letter.outcome.id async for letter in queue.dead_letters()] == [poison.id]
    await jet.close()


@ON_BOTH
async def test_order_of_a_key_is_kept_through_a_crash(path: str) -> None:
    jet, queue = await opened(path, 1)
    thread, quick = queue.jobs_by_name["thread"], queue.jobs_by_name["quick"]
    first = await thread.enqueue(key="k")
    second = await quick.enqueue(0, key="k")
    other = await quick.enqueue(0, key="other")
    with Child("work", path, "1") as child:
        await child.says("started 1")
        await other.outcome(timeout=60)  # another key waits for nobody
    assert (await second.info()).attempt == 0
    with Child("work", path, "1") as child:
        await child.says("started 2")
        child.tell("finish")
        await second.outcome(timeout=60)
    assert [outcome.id for outcome in await ended(queue)] == [other.id, first.id, second.id]
    await jet.close()


async def test_a_queue_that_is_made_anew_hears_nothing_of_the_one_before(jet: Jet, another: OpenQueue) -> None:
    """Its jobs and deliveries reuse the numbers of the deleted ones."""

    async def paint(colour: str) -> None: ...

    old, rules = await jet.queue("g", exclusive=True, lease=0.3), JobRules()
    await old.job(paint).enqueue("red", key="k")
    async with old.claims(rules) as before:
        [late] = await before.take(timeout=20)
        for name in await jet.stream_names():
            await jet.delete_stream(name)
        new = await another("g", exclusive=True, lease=0.3)
        await new.job(paint).enqueue("blue", key="k")
        async with new.claims(rules) as now:
            [job] = await now.take(timeout=20)
            assert (job.id, job.records.delivered.consumer_seq) == (late.id, late.records.delivered.consumer_seq)
            assert job.token > late.token
            late.complete("red")
            assert await before.settle([late]) == [late]
            job.complete("blue")
            assert await now.settle([job]) == []
    assert [outcome.value() for outcome in await ended(new)] == ["blue"]


async def test_a_settlement_of_a_replaced_delivery_is_refused(keyed: Queue, jet: Jet) -> None:
    """Fencing, without the keeper's help: the job itself loses its lease, and does not check."""

    @keyed.job
    async def job(context: JobContext) -> str:
        if context.attempt == 1:
            await jet.backend.ack("JOBS_keyed", "workers", [AckOp(kind="nak", seq=int(context.id), consumer_seq=1)])
            consumer = await (await jet.stream("JOBS_keyed")).consumer("workers")
            [taken] = await consumer.fetch(1, no_wait=True)
            await taken.nak()
        return f"attempt {context.attempt}"

    handle = await job.enqueue(key="k")
    await drain(keyed, concurrency=1)
    # A delivery that another one has taken, and has not begun, is no attempt.
    assert (await handle.outcome()).value() == "attempt 2"
    assert len(await ended(keyed)) == 1


def delivered(number: int) -> Delivered:
    return Delivered("s", number, 0, None, b"", number, 1, 0, "s", "c", number)


class Store:
    """A backend that only extends leases, except while it is ``down``: it then hangs or raises."""

    def __init__(self) -> None:
        self.down = ""
        self.refused: PeltonError | None = None
        self.replaced = set[int]()
        self.asked = 0
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def clone(self) -> "Store":
        return self

    def recover(self) -> None:
        """Answer again, also what hangs."""
        self.down = ""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    async def close(self) -> None: ...

    async def ack(self, stream: str, consumer: str, acks: list[AckOp]) -> list[PeltonError | None]:
        self.asked += 1
        while self.down == "hangs":
            self._loop = asyncio.get_running_loop()
            await self._changed.wait()
        if self.down == "raises":
            raise PeltonError("not now")
        return [PeltonError("replaced") if ack.seq in self.replaced else self.refused for ack in acks]


class Held:
    """A job that is held by a lease."""

    def __init__(self, number: int, told: Callable[[str], object]) -> None:
        self.lost = False
        self.records = records_of(QueueNames("q"), "w", delivered(number))
        self._told = told

    def lose(self, reason: str) -> None:
        self.lost = True
        self._told(reason)


def alone(
    number: int, asked: float, duration: float, told: Callable[[str], object], *, by_clock: bool = False
) -> SharedLease[Held]:
    """Return the lease of one job."""
    return SharedLease([Held(number, told)], asked, duration, by_clock=by_clock)


async def kept(keeper: LeaseKeeper, clock: ManualClock, pause: float, until: Callable[[], bool]) -> None:
    """Make the keeper's rounds as its thread does, the first after ``pause`` seconds of a clock that the test moves."""
    while not until():
        clock.advance(pause)
        making = asyncio.ensure_future(keeper.round())
        while not making.done():
            for _ in range(10):
                await asyncio.sleep(0)
            clock.advance(0.0 if making.done() else 0.01)
        pause = await making


@pytest.mark.parametrize("down", ["hangs", "raises"])
@pytest.mark.parametrize("phase", [0.0, 0.03, 0.06, 0.09])
async def test_a_lease_that_cannot_be_extended_is_told_before_it_runs_out(down: str, phase: float) -> None:
    store, clock = Store(), ManualClock()
    duration, told = 0.6, list[float]()
    store.down = down
    keeper = LeaseKeeper(store, clock, duration)  # type: ignore[arg-type]
    lease = alone(1, clock.boottime(), duration, lambda reason: told.append(clock.boottime()))
    keeper.hold(lease)
    # Rounds fall differently against the lease.
    await kept(keeper, clock, duration / 6 - phase, until=lambda: clock.boottime() > 2 * duration)
    assert len(told) == 1
    assert duration / 2 < told[0] - lease.clock.confirmed < duration
    assert lease.lost


@pytest.mark.parametrize("busy", [False, True])
def test_a_lease_that_was_long_in_getting_is_told_in_time(busy: bool) -> None:
    """Neither the pause between two rounds nor a round under way, of 100 and 150 seconds, keeps it waiting."""
    store, clock, told = Store(), SystemClock(), threading.Event()
    store.down, duration = "hangs", 600.0
    keeper = LeaseKeeper(store, clock, duration)  # type: ignore[arg-type]
    keeper.start()
    if busy:
        keeper.hold(alone(1, clock.boottime() - duration / 2, duration, lambda reason: None, by_clock=True))
        while not store.asked:
            threading.Event().wait(0.005)
    old = alone(2, clock.boottime() - 0.7999 * duration, duration, lambda reason: told.set(), by_clock=True)
    keeper.hold(old)
    assert told.wait(80)
    store.recover()
    keeper.stop()


@pytest.mark.parametrize(("after", "is_lost"), [(-0.2, False), (0.1, True), (0.9, True), (1.1, False)])
async def test_a_lease_that_a_restarted_server_may_have_forgotten_is_lost(after: float, is_lost: bool) -> None:
    clock, reasons, restarted_at = ManualClock(), list[str](), float("-inf")
    keeper = LeaseKeeper(Store(), clock, 60, lambda: restarted_at)  # type: ignore[arg-type]
    clock.advance(10)
    # It was asked for long before.
    keeper.hold(alone(1, clock.boottime() - 9, 60, reasons.append, by_clock=True))
    await keeper.round()
    restarted_at = clock.boottime() + after
    clock.advance(5)
    await keeper.round()
    assert [reason[:29] for reason in reasons] == ["the server was started anew j"] * is_lost


async def test_slow_answers_about_several_consumers_do_not_add_up() -> None:
    store, clock = Store(), ManualClock()
    store.down = "hangs"
    keeper = LeaseKeeper(store, clock, 3.0)  # type: ignore[arg-type]
    for consumer in ("c", "d", "e"):
        lease = alone(1, 0.0, 3.0, lambda reason: None, by_clock=True)
        lease.delivered = msgspec.structs.replace(lease.delivered, consumer=consumer)
        keeper.hold(lease)
    clock.advance(1.0)
    extending = asyncio.create_task(keeper.round())
    for _ in range(10):
        await asyncio.sleep(0)
    assert store.asked == 3
    clock.advance(0.75)
    assert await extending == pytest.approx(0.15)


async def test_a_store_that_is_down_for_a_moment_loses_no_lease() -> None:
    store, clock = Store(), ManualClock()
    store.down = "raises"
    keeper = LeaseKeeper(store, clock, 0.6)  # type: ignore[arg-type]
    lease = alone(1, clock.boottime(), 0.6, lambda reason: None)
    keeper.hold(lease)
    await kept(keeper, clock, 0.1, until=lambda: store.asked > 0)
    assert lease.clock.confirmed == 0.0
    store.down = ""
    await kept(keeper, clock, 0.03, until=lambda: lease.clock.confirmed > 0 or lease.lost)
    assert not lease.lost


def test_a_refused_extension_is_told_once_and_a_released_lease_is_left_alone() -> None:
    store, clock, reasons = Store(), SystemClock(), list[str]()
    store.refused = PeltonError("replaced")
    keeper = LeaseKeeper(store, clock, 60)  # type: ignore[arg-type]
    # Half of them has passed: they are extended at once.
    lost, told = alone(1, clock.boottime() - 30, 60, reasons.append), threading.Event()
    released = alone(2, clock.boottime() - 30, 60, lambda reason: told.set())
    keeper.start()
    keeper.hold(released)
    keeper.release(released)
    keeper.hold(lost)
    while not reasons:
        threading.Event().wait(0.005)
    keeper.stop()
    assert reasons == ["replaced"]
    assert not told.is_set()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_lease_in_doubt_is_confirmed_before_the_job_starts(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """The process was paused between taking the job and starting it."""
    attempts = list[int]()

    @queue.job
    async def job(context: JobContext) -> None:
        attempts.append(context.attempt)

    doubts = [True]
    monkeypatch.setattr(SharedLease, "is_doubtful", lambda *_: doubts.pop() if doubts else False)
    backend = queue.jet.backend
    real = backend.ack

    async def ack(stream: str, consumer: str, acks: list[AckOp]) -> list[PeltonError | None]:
        if replaced:
            await real(stream, consumer, [AckOp(kind="nak", seq=acks[0].seq, consumer_seq=acks[0].consumer_seq)])
            taken = await (await (await queue.jet.stream(stream)).consumer(consumer)).fetch(1, no_wait=True)
            answers = await real(stream, consumer, acks)
            again = taken[0].delivered
            await real(stream, consumer, [AckOp(kind="nak", seq=again.seq, consumer_seq=again.consumer_seq)])
            return answers
        return await real(stream, consumer, acks)

    handle = await job.enqueue()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "ack", ack)
        await drain(queue, concurrency=1)
    assert (await handle.info()).state == "completed"
    assert attempts == [1]


def test_of_jobs_that_share_a_lease_each_is_lost_by_itself() -> None:
    store, clock, told = Store(), SystemClock(), threading.Event()
    keeper = LeaseKeeper(store, clock, 60)  # type: ignore[arg-type]
    store.replaced = {2}
    jobs = [Held(number, lambda reason: told.set()) for number in (1, 2, 3)]
    lease = SharedLease(jobs, clock.boottime() - 30, 60, by_clock=False)
    taken = lease.clock.confirmed
    keeper.start()
    keeper.hold(lease)
    assert told.wait(30)
    while lease.clock.confirmed == taken and not lease.lost:
        threading.Event().wait(0.005)
    keeper.stop()
    assert jobs[1].lost
    assert [job.records.delivered.seq for job in lease.kept_by()] == [1, 3]
    lease.lose("it was not extended in time")
    assert [job.lost for job in jobs] == [True] * 3


def test_where_late_acks_are_confirmed_the_clock_alone_judges() -> None:
    told: list[str] = []
    here = alone(1, 0.0, 1.0, told.append)
    there = alone(1, 0.0, 1.0, told.append, by_clock=True)
    assert not here.is_over(99.0)
    assert not there.is_over(0.7)
    assert there.is_over(0.9)
    there.lose("late")
    assert there.is_over(0.1)
    assert told == ["late"]


class SleepingClock(SystemClock):
    """The clocks of a machine that was suspended for ``slept`` seconds in all."""

    slept = 0.0

    def now(self) -> int:
        return super().now() + round(self.slept * 1e9)

    def boottime(self) -> float:
        return super().boottime() + self.slept


@pytest.mark.parametrize("path", ["nats"], indirect=True)
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_machine_that_slept_past_its_lease_settles_nothing(path: str, exclusive: bool) -> None:
    """A server confirms late acks, so that only the worker's clock can tell."""
    clock, started, goes_on = SleepingClock(), asyncio.Event(), asyncio.Event()
    async with pelton.open(path, runtime=replace(system_runtime(), clock=clock)) as jet:
        queue = await jet.queue("garage", exclusive=exclusive, lease=60)

        @queue.job
        async def job() -> str:
            started.set()
            await goes_on.wait()
            return "late"

        handle = await job.enqueue(key="k" if exclusive else "")
        async with working(queue):
            await started.wait()
            clock.slept += 70
            goes_on.set()
        assert (await handle.info()).state != "completed"
        assert await ended(queue) == []
