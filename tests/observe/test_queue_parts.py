"""Flows, limits and the search for jobs, from a file that another process writes meanwhile, and from a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pelton
from pelton import observe
from pelton.observe.queues import _first_since
from pelton.queue.model.naming import QueueNames


async def test_flows_and_one_with_its_jobs(jet: pelton.Jet, look: pelton.Jet) -> None:
    pages = await jet.queue("pages")
    assert await observe.flow_summaries(look, "pages") == []

    @pages.job(max_attempts=1)
    async def fetch(url: str) -> str:
        if url == "bad":
            raise ValueError("no such page")
        return url

    ids = []
    for name, url in (("good", "a"), ("broken", "bad"), ("later", "c")):
        flow = await pages.new_flow(name)
        options = {"delay": 3600} if name == "later" else {}
        first = flow.options(**options).add(fetch, url)  # type: ignore[arg-type]
        flow.add(fetch, first.result)
        ids.append((await flow.enqueue()).id)
    working = asyncio.ensure_future(pages.work(handle_signals=False))
    for each in ids[:2]:
        await pages.flow(each).outcome(timeout=30)
    pages.stop()
    await working
    found = await observe.flow_summaries(look, "pages", within=600)
    assert [(one.name, one.state, one.size) for one in found] == [
        ("later", "running", 2), ("broken", "failed", 2), ("good", "completed", 2),
    ]  # fmt: skip
    assert [one.name for one in await observe.flow_summaries(look, "pages", state="failed", within=600)] == ["broken"]
    assert [one.name for one in await observe.flow_summaries(look, "pages", limit=1)] == ["later"]
    since = found[1].enqueued_at
    assert [one.name for one in await observe.flow_summaries(look, "pages", since=since)] == ["later", "broken"]
    broken = await observe.flow_details(look, "pages", ids[1])
    assert [(node.job, node.state, node.after) for node in broken.nodes] == [
        ("fetch", "failed", ()), ("fetch", "cancelled", (0,)),
    ]  # fmt: skip
    assert "no such page" in broken.error
    # The second job of the broken flow never started.
    summary = await observe.queue_summary(look, "pages")
    assert summary.cancelled == 1
    assert max(summary.run.longest, summary.wait.longest) < 60
    assert [one.id async for one in (await look.queue("pages", create=False)).flows()] == ids
    for wrong in ("nothing", "no flow", "*"):
        with pytest.raises(pelton.FlowNotFoundError):
            await observe.flow_details(look, "pages", wrong)


async def test_many_flows_are_read_from_the_newest_on(
    jet: pelton.Jet, look: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = await jet.queue("pages")
    for number in range(120):
        flow = await pages.new_flow(str(number))
        for _ in range(2):
            flow.add("fetch", url="a")
        await flow.enqueue()
    asked, call = [], look.backend.call

    async def counted(request: Any) -> Any:
        asked.append(request)
        return await call(request)

    monkeypatch.setattr(look.backend, "call", counted)
    found = await observe.flow_summaries(look, "pages", limit=100, within=30)
    assert [one.name for one in found] == [str(number) for number in range(119, 19, -1)]
    # Of the stream, each beginning, each state: what lies between is not read.
    assert len(asked) <= 1 + 120 + 100


async def test_limits_and_how_much_of_them_is_used(jet: pelton.Jet, look: pelton.Jet) -> None:
    garage = await jet.queue("garage")
    assert await observe.limit_summaries(look, "garage") == []
    started, may_end = asyncio.Semaphore(0), asyncio.Event()

    @garage.job
    async def repair(car: str) -> None:
        started.release()
        await may_end.wait()

    await garage.limit(concurrency=5)
    await garage.limit(job="repair", per_key=True, concurrency=1)
    await garage.limit(job="repair", rate=pelton.Rate(1000, per=10, burst=100))
    for key in ("a", "a", "b.c"):
        await repair.enqueue(key, key=key)
    working = asyncio.ensure_future(garage.work(until_empty=True, handle_signals=False))
    for _ in range(2):
        await started.acquire()
    whole, keys, rate = await observe.limit_summaries(look, "garage")
    assert (whole.job, whole.concurrency, whole.running, whole.fullest) == ("", 5, 2, 2)
    assert (keys.job, keys.per_key, keys.running, keys.keys, keys.fullest) == ("repair", True, 2, 2, 1)
    assert (rate.starts, rate.per, rate.burst, rate.running) == (1000, 10, 100, 0)
    may_end.set()
    await working
    assert [one.running for one in await observe.limit_summaries(look, "garage")] == [0, 0, 0]


async def test_jobs_are_found_by_id_key_name_and_argument(jet: pelton.Jet, look: pelton.Jet) -> None:
    garage = await jet.queue("garage")

    @garage.job(max_attempts=1)
    async def repair(car: str, note: str) -> None:
        if car == "wreck":
            raise ValueError(car)

    done = await repair.enqueue("one", 'say "so"', key="k1")
    dead = await repair.enqueue("wreck", "über", key="k2")
    await garage.work(until_empty=True, handle_signals=False)
    waits = await repair.enqueue("three", 'say "so" in Zürich', key="k3")
    later = await garage.options(delay=3600).enqueue(repair, "four", "über")
    await garage.schedule("nightly", repair, args=("über", "x"), cron="0 3 * * *")

    async def found(text: str, **options: int) -> list[str]:
        return [job.id for job in (await observe.find_jobs(look, "garage", text, within=600, **options)).jobs]

    assert await found(done.id) == [done.id]
    assert await found(later.id) == [later.id]
    assert await found("k1") == [done.id]
    assert await found("k") == [dead.id, done.id, waits.id]
    assert await found('say "so"') == [waits.id]
    assert await found("über") == [dead.id, later.id]
    assert len(await found("repair")) == 4
    assert await found("Zürich", begin=int(waits.id) + 1) == []
    assert await found("nothing") == []
    whole = await observe.find_jobs(look, "garage", "nothing", within=600)
    assert (whole.next_begin, whole.looked_at >= 5) == (0, True)
    first = await observe.find_jobs(look, "garage", "repair", limit=3, within=600)
    assert first.next_begin == int(waits.id) + 1
    with pytest.raises(pelton.QueueNotFoundError):
        await observe.find_jobs(look, "none", "x")


async def test_a_search_stops_and_says_where(jet: pelton.Jet, look: pelton.Jet) -> None:
    garage = await jet.queue("garage")
    for number in range(5):
        await garage.enqueue("repair", car=f"car{number}")
    found = await observe.find_jobs(look, "garage", "car4", within=0)
    assert (len(found.jobs), found.next_begin > 0) in {(0, True), (1, False)}
    begin, jobs = found.next_begin, list(found.jobs)
    while begin:
        found = await observe.find_jobs(look, "garage", "car4", begin=begin, within=0.1)
        begin, jobs = found.next_begin, jobs + list(found.jobs)
    assert len(jobs) == 1


@pytest.mark.parametrize("exclusive", [True, False])
async def test_jobs_of_a_key_and_how_many_each_has(jet: pelton.Jet, look: pelton.Jet, exclusive: bool) -> None:
    garage = await jet.queue("garage", exclusive=exclusive)

    @garage.job
    async def repair(car: str) -> str:
        return car

    done = await repair.enqueue("a", key="a.b")
    await garage.work(until_empty=True, handle_signals=False)
    ids: dict[str, list[str]] = {"a.b": [], "a": [], "Zürich 1": []}
    for number in range(12):
        for key in ids:
            if number % (len(key) % 3 + 1) == 0:
                options = repair.options(key=key, priority=number % 4)
                ids[key].append((await options.enqueue(f"car{number}")).id)
    ids["a"].append((await repair.options(key="a", unique="arguments").enqueue("unique")).id)
    later = (await repair.options(key="a", delay=3600).enqueue("later")).id
    await repair.enqueue("free")
    if exclusive:
        # Somebody else's message, which no worker has seen yet, is counted and shown.
        ids["a.b"].append(str((await jet.publish(QueueNames("garage").job_subject("a.b"), b"no job")).seq))
        page = await observe.list_jobs(look, "garage", observe.JobSelection(key="a.b"))
        (odd,) = [one for one in page.jobs if not one.job]
        assert (odd.id, odd.key, odd.last_error[:30]) == (ids["a.b"][-1], "a.b", "the message is not a valid job")
    counts = await observe.key_counts(look, "garage")
    assert {one.key: one.jobs for one in counts.keys} == {key: len(found) for key, found in ids.items()}
    assert [one.jobs for one in counts.keys] == sorted((one.jobs for one in counts.keys), reverse=True)
    assert counts.sampled == (0 if exclusive else sum(map(len, ids.values())) + 1)
    assert len((await observe.key_counts(look, "garage", limit=1)).keys) == 1
    ids["a"].append(later)
    for key, expected in ids.items():
        whole = await observe.jobs_of_key(look, "garage", key, limit=100, within=600)
        assert ([job.id for job in whole.jobs], whole.next_begin) == (expected, 0)
        assert whole.total == (len(expected) if exclusive else -1)
        assert [job.id async for job in observe.unfinished_jobs(look, "garage", key=key)] == expected
        begin, found = 0, list[str]()
        while True:
            part = await observe.jobs_of_key(look, "garage", key, begin=begin, limit=2, within=0)
            found += [job.id for job in part.jobs]
            assert part.next_begin == 0 or part.next_begin > begin
            begin = part.next_begin
            if not begin:
                break
        assert found == expected
    assert done.id not in ids["a.b"]
    assert (await observe.jobs_of_key(look, "garage", "none", within=600)).jobs == ()
    for wrong in (observe.key_counts(look, "none"), observe.jobs_of_key(look, "none", "a")):
        with pytest.raises(pelton.QueueNotFoundError):
            await wrong


async def test_the_summaries_of_all_queues_are_few_questions(jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        queue = await jet.queue(f"q{number}")
        queue.job(name="noop")(lambda: None)
        if number < 3:
            await queue.enqueue("noop")
    asked: list[object] = []
    kind = type(jet.backend)
    for verb in ("call", "direct_get"):
        original = getattr(kind, verb)

        async def ask(self: Any, *given: Any, original: Any = original) -> Any:
            asked.append(given[0])
            return await original(self, *given)

        monkeypatch.setattr(kind, verb, ask)
    found = await observe.queue_summaries(jet)
    assert [(one.name, one.pending, bool(one.oldest_at)) for one in found] == [
        (f"q{number}", int(number < 3), number < 3) for number in range(8)
    ]
    # Their names and their streams; and of each that has jobs, its consumers, tenants, schedules and the oldest.
    assert len(asked) <= 3 + 3 * 10
    asked.clear()
    assert (await observe.queue_summaries(jet, limit=2))[1].pending == 1
    assert len(asked) <= 1 + 2 * 11


async def test_more_jobs_end_in_a_minute_than_the_sample_has(jet: pelton.Jet, look: pelton.Jet) -> None:
    garage = await jet.queue("garage")

    @garage.job
    async def wash() -> None: ...

    await wash.enqueue_many([()] * 450)
    await garage.work(until_empty=True, handle_signals=False, concurrency=50)
    summary = await observe.queue_summary(look, "garage")
    assert summary.per_minute == 450


async def test_where_the_last_minute_begins_is_found(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_direct=True)
    for _ in range(40):
        await jet.publish("s")
    for seq in (3, 4, 17, 30):
        await stream.delete_message(seq)
    times = {stored.seq: stored.time_ns for stored in await stream.get_messages(100)}
    for high in (40, 25):
        for low in (1, 2):
            for seq, time in times.items():
                if low <= seq <= high:
                    expected = min(one for one, at in times.items() if at >= time and one >= low)
                    assert (await _first_since(stream, time, low, high)).seq == expected
