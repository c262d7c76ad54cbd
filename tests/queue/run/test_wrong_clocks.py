"""Programs whose wall clock is wrong, on a cluster: what they ask for counts by the server's clock."""

from __future__ import annotations

import pytest

import pelton
from pelton import Jet
from pelton.api import headers, parse_rfc3339
from pelton.api.times import SECOND
from tests.kit.clocks import runtime_behind

ON_CLUSTER = pytest.mark.parametrize("path", ["nats"], indirect=True)
WRONG = pytest.mark.parametrize("behind", [3600, -3600])
# More than a server takes to answer, and far less than the clock is wrong.
CLOSE = 100 * SECOND
jobs = pelton.Jobs()


@jobs.job
async def repair(name: str) -> str:
    return name


async def server_time(jet: Jet, stream: str) -> int:
    return parse_rfc3339((await (await jet.stream(stream)).info()).ts)


@WRONG
@ON_CLUSTER
async def test_a_delay_is_as_long_as_it_was_asked_for(path: str, jet: Jet, behind: float) -> None:
    async with pelton.open(path, runtime=runtime_behind(behind)) as wrong:
        queue = await wrong.queue("garage", jobs=jobs)
        await queue.options(delay=600).enqueue(repair, "car1")
        flow = await queue.new_flow()
        flow.options(delay=600).add(repair, "car2")
        await flow.enqueue()
        await queue.work(until_idle=True, handle_signals=False)
        await wrong.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
        await wrong.schedule("s.later", b"", target="s.now", delay=600)
    due = await server_time(jet, "JOBS_garage") + 600 * SECOND
    right = await jet.queue("garage", jobs=jobs)
    async for info in right.jobs():
        assert abs(info.due - due) < CLOSE
    assert (await right.counts()).scheduled == 2
    stored = await (await jet.stream("s")).get_last_message("s.later")
    at = (headers.first(stored.hdrs, headers.SCHEDULE) or "").removeprefix("@at ")
    assert abs(parse_rfc3339(at) - due) < CLOSE


@WRONG
@pytest.mark.parametrize("is_worker", [False, True])
@ON_CLUSTER
async def test_times_to_live_and_uniqueness_count_from_then(
    path: str, jet: Jet, behind: float, is_worker: bool
) -> None:
    async with pelton.open(path, runtime=runtime_behind(behind)) as wrong:
        here, there = [await one.queue("garage", jobs=jobs) for one in (jet, wrong)]
        enqueues, works = (here, there) if is_worker else (there, here)
        unique = enqueues.options(unique="arguments", unique_for=600, ttl=600)
        handle = await unique.enqueue(repair, "car1")
        await works.work(until_idle=True, handle_signals=False)
        assert (await handle.info()).state == "completed"
        assert (await unique.enqueue(repair, "car1")).id == handle.id
        stream = await jet.stream("JOBS_garage")
        kept = await stream.get_next_message(">", 1)
        assert 500 < int((headers.first(kept.hdrs, headers.TTL) or "").removesuffix("s")) <= 600


@ON_CLUSTER
async def test_what_is_young_is_not_removed_by_age(path: str, jet: Jet) -> None:
    bucket, files = await jet.create_bucket("cars"), await jet.create_objects("files")
    await bucket.put("car1", b"red")
    await bucket.delete("car1")
    # Of a put that is under way.
    await jet.publish("$O.files.C.some", b"chunk")
    async with pelton.open(path, runtime=runtime_behind(-7200)) as ahead:
        await (await ahead.bucket("cars")).purge_deletes()
        assert await (await ahead.objects("files")).cleanup() == 0
    assert [entry.operation for entry in await bucket.history("car1")] == ["delete"]
    assert await files.cleanup(older_than=0) == 1
