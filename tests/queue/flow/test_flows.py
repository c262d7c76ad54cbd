"""Flows from end to end, on a file and on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pelton
import pelton.sync
from pelton import FlowHandle, FlowInfo, Jet, JobFailedError, StoredMessage, Stream
from pelton.queue import JobContext, JobCounts, Queue
from pelton.queue.reactor import FlowCleaning
from pelton.testing import manual_runtime
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, working

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


def states(info: FlowInfo) -> list[str]:
    return [node.state for node in info.nodes]


async def test_a_worker_without_flows_gives_their_jobs_back(jet: Jet) -> None:
    queue = await jet.queue("garage")
    stream = await jet.stream("JOBS_garage")
    stored, listed = list[bytes](), list[str]()

    async def look() -> None:
        stored.append((await stream.get_next_message("$JOBS.garage.free.>", 1)).data)
        listed.extend([info.job async for info in queue.jobs()])

    @queue.job(max_attempts=1)
    async def fetch() -> str:
        await look()
        raise ValueError("once")

    flow = await queue.new_flow()
    node = flow.add(fetch)
    handle = await flow.enqueue()
    await drain(queue)
    await queue.redrive((await handle.job(node)).id)
    await look()
    # Workers of a version that knows no flows read this name; nobody else sees it.
    assert all(b'"job":"flow:fetch"' in data for data in stored)
    assert listed == ["fetch", "fetch"]
    assert [outcome.job async for outcome in queue.history()] == ["fetch"]


@ON_BOTH
@BOTH_KINDS
async def test_results_are_arguments_of_later_jobs(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    ran = list[str]()

    @queue.job
    async def fetch(n: int) -> str:
        ran.append(f"fetch {n}")
        return "page" * n

    @queue.job
    def count(page: str, times: int = 1) -> int:
        ran.append(f"count {len(page)}")
        return len(page) * times

    @queue.job
    async def total(numbers: list[int]) -> int:
        ran.append("total")
        return sum(numbers)

    @queue.job
    async def tell() -> None:
        ran.append("tell")

    flow = await queue.new_flow("pages")
    pages = [flow.options(key=f"k{n}").add(fetch, n) for n in (1, 2)]
    counts = [flow.add(count, page.result, times=2) for page in pages]
    last = flow.add(total, [one.result for one in counts])
    flow.options(after=[last], key="k1").add(tell)
    handle = await flow.enqueue()
    assert (await handle.status()).state == "running"
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert (info.state, info.name, info.size) == ("completed", "pages", 6)
    assert states(info) == ["completed"] * 6
    assert await handle.value(last, timeout=60) == 24
    assert await (await handle.job(pages[1])).value(timeout=60) == "page" * 2
    assert sorted(ran) == ["count 4", "count 8", "fetch 1", "fetch 2", "tell", "total"]
    assert ran[-2:] == ["total", "tell"]
    assert [one.id async for one in queue.flows()] == [handle.id]


@ON_BOTH
async def test_what_follows_a_failed_job_is_cancelled(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    ran = list[str]()

    @queue.job(max_attempts=2, backoff=FAST)
    async def fetch() -> str:
        raise ValueError("no net")

    @queue.job
    async def parse(page: str) -> str:
        return page

    @queue.job
    async def clean(page: str | None) -> None:
        ran.append(f"clean {page}")

    flow = await queue.new_flow()
    page = flow.add(fetch)
    parsed = flow.add(parse, page.result)
    flow.add(parse, parsed.result)
    flow.options(on_failure="run", after=[parsed]).add(clean, page.result)
    handle = await flow.enqueue()
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert (info.state, states(info)) == ("failed", ["failed", "cancelled", "cancelled", "completed"])
    assert "no net" in info.error
    assert ran == ["clean None"]
    outcome = await (await handle.job(parsed)).outcome(timeout=60)
    assert outcome.state == "cancelled"
    assert "'test_what_follows" not in outcome.error
    assert "no net" in outcome.error
    with pytest.raises(pelton.JobFailedError, match="no net"):
        await handle.value(parsed, timeout=60)
    assert (await queue.counts()).cancelled == 2


@ON_BOTH
@BOTH_KINDS
async def test_a_flow_is_cancelled_from_another_process(jet: Jet, another: OpenQueue, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    elsewhere = await another("garage")
    began, cancelled = asyncio.Event(), asyncio.Event()
    ran = list[str]()

    @queue.job
    async def long() -> int:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return 1

    @queue.job
    async def short(n: int) -> None:
        ran.append("short")

    flow = await queue.new_flow()
    first = flow.options(key="k").add(long)
    flow.options(key="k", delay=3600).add(short, 1)
    flow.options(on_failure="run").add(short, first.result)
    handle = await flow.enqueue()
    async with working(queue):
        await asyncio.wait_for(began.wait(), 60)
        assert await elsewhere.flow(handle.id).cancel(reason="not wanted")
        assert await handle.cancel()
        info = await handle.outcome(timeout=60)
        await asyncio.wait_for(cancelled.wait(), 60)
    assert (info.state, states(info), ran) == ("cancelled", ["cancelled"] * 3, [])
    assert "not wanted" in info.error
    assert all("not wanted" in node.error for node in info.nodes)
    assert await handle.cancel(), "it is cancelled already"
    assert (await queue.counts()).unfinished == 0
    assert [one.state async for one in queue.flows(state="cancelled")] == ["cancelled"]
    assert [one.id async for one in queue.flows(state="running")] == []


@ON_BOTH
async def test_a_redriven_job_continues_its_flow(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    is_broken = True
    ran = list[str]()

    @queue.job(max_attempts=1)
    async def fetch(n: int) -> str:
        ran.append(f"fetch {n}")
        if is_broken and n == 1:
            raise ValueError("no net")
        return f"page {n}"

    @queue.job
    async def join(pages: list[str]) -> str:
        ran.append("join")
        return ", ".join(pages)

    @queue.job
    async def tell(text: str) -> str:
        ran.append("tell")
        return text

    flow = await queue.new_flow()
    pages = [flow.add(fetch, n) for n in range(3)]
    joined = flow.add(join, [page.result for page in pages])
    flow.add(tell, joined.result)
    handle = await flow.enqueue()
    await drain(queue)
    assert states(await handle.outcome(timeout=60)) == ["completed", "failed", "completed", "cancelled", "cancelled"]
    is_broken = False
    [letter] = [letter async for letter in queue.dead_letters()]
    redriven = await queue.redrive(letter.outcome.id)
    info = await handle.status()
    assert (info.state, info.error, info.finished_at) == ("running", "", 0), "at once"
    assert states(info) == ["completed", "enqueued", "completed", "waiting", "waiting"]
    assert info.nodes[1].id == redriven.id
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert (info.state, info.error) == ("completed", "")
    assert await handle.value(timeout=60) == "page 0, page 1, page 2"
    assert sorted(ran) == ["fetch 0", "fetch 1", "fetch 1", "fetch 2", "join", "tell"]
    assert [one.state async for one in queue.flows()] == ["completed"]


async def test_a_flow_is_enqueued_in_a_transaction(jet: Jet, queue: Queue) -> None:
    @queue.job
    async def job(n: int) -> int:
        return n + 1

    kept, undone = await queue.new_flow(), await queue.new_flow()
    for flow in (kept, undone):
        flow.add(job, flow.add(job, 1).result)
    async with queue.events("enqueued") as events:
        async with jet.transaction() as tx:
            handle = await tx.enqueue_flow(kept)
        assert (await events.next(timeout=20)).id == (await handle.status()).nodes[0].id
    assert (await queue.counts()).pending == 1
    tx = jet.transaction()
    await tx.__aenter__()
    gone = await tx.enqueue_flow(undone)
    await tx.__aexit__(ValueError, ValueError(), None)
    assert (await queue.counts()).pending == 1
    await drain(queue)
    assert await handle.value(timeout=60) == 3
    with pytest.raises(pelton.FlowNotFoundError, match=gone.id):
        await gone.status()


@ON_BOTH
async def test_to_enqueue_a_flow_twice_has_no_second_effect(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    ran = list[int]()

    @queue.job
    async def job(n: int) -> None:
        ran.append(n)

    flow = await queue.new_flow()
    flow.add(job, 1)
    handle = await flow.enqueue()
    await drain(queue)
    assert (await flow.enqueue()).id == handle.id
    await drain(queue)
    assert ran == [1]
    with pytest.raises(pelton.ConfigError, match="was enqueued"):
        flow.add(job, 2)


@ON_BOTH
async def test_the_first_jobs_of_a_flow_are_jobs_at_once_and_in_order(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    started, announced = list[str](), list[str]()

    @queue.job
    async def job(name: str) -> str:
        started.append(name)
        return name

    flow = await queue.new_flow()
    firsts = [flow.add(job, f"flow{n}") for n in range(3)]
    flow.options(after=firsts).add(job, "last")
    async with queue.events("enqueued") as events:
        handle = await flow.enqueue()
        announced += [(await events.next(timeout=20)).id for _ in range(3)]
    await job.enqueue("later")
    assert (await queue.counts()).pending == 4
    waiting = [info.id async for info in queue.jobs()]
    assert waiting[:3] == announced == [node.id for node in (await handle.status()).nodes[:3]]
    await drain(queue, concurrency=1)
    assert started == ["flow0", "flow1", "flow2", "later", "last"]
    assert (await handle.status()).state == "completed"


@ON_BOTH
async def test_a_flow_that_nobody_works_on_is_cancelled_at_once(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    ran = list[str]()

    @queue.job
    async def job() -> None:
        ran.append("job")

    flow = await queue.new_flow()
    flow.options(after=[flow.add(job), flow.add(job)]).add(job)
    handle = await flow.enqueue()
    assert await handle.cancel(reason="not needed")
    # A worker has to look at the flow once more: who starts workers by these numbers sees that.
    assert await queue.counts() == JobCounts(pending=1, cancelled=2)
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert await queue.counts() == JobCounts(cancelled=3)
    assert (info.state, states(info), ran) == ("cancelled", ["cancelled"] * 3, [])


@ON_BOTH
async def test_a_first_job_that_is_too_large_fails(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    await jet.update_stream("JOBS_garage", max_msg_size=1000)

    @queue.job
    async def job(text: str) -> None: ...

    flow = await queue.new_flow()
    for size in (1, 1000, 2):
        flow.add(job, "x" * size)
    handle = await flow.enqueue()
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert (info.state, states(info)) == ("failed", ["completed", "failed", "completed"])
    assert "too large" in info.nodes[1].error


@ON_BOTH
async def test_flows_of_many_jobs(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)
    size = 300

    @queue.job
    async def one(n: int, padding: str) -> int:
        return n

    @queue.job
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    flow = await queue.new_flow()
    first = flow.add(one, 0, "")
    # So large that it is stored in parts.
    middle = [flow.options(after=[first]).add(one, n, "x" * 2000) for n in range(size)]
    flow.add(total, [node.result for node in middle])
    assert len(flow.messages()) > 2
    handle = await flow.enqueue()
    await drain(queue, concurrency=32)
    assert await handle.value(timeout=60) == sum(range(size))
    assert (await handle.status()).size == size + 2
    counts = await queue.counts()
    assert (counts.completed, counts.unfinished) == (size + 2, 0)


async def test_results_that_are_too_large_together_fail_the_job_that_gets_them(
    jet: Jet, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job
    async def part(n: int) -> str:
        return "x" * 1000

    @queue.job
    async def join(parts: list[str]) -> str:
        return "".join(parts)

    @queue.job
    async def tell(text: str) -> None: ...

    flow = await queue.new_flow()
    parts = [flow.add(part, n) for n in range(20)]
    joined = flow.add(join, [one.result for one in parts])
    last = flow.add(tell, joined.result)
    handle = await flow.enqueue()
    await jet.update_stream("JOBS_garage", max_msg_size=10_000)
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert states(info) == ["completed"] * 20 + ["failed", "cancelled"]
    assert "too large together" in info.error
    with pytest.raises(pelton.JobFailedError, match="too large together"):
        await (await handle.job(joined)).value(timeout=60)
    with pytest.raises(pelton.JobFailedError, match="too large together"):
        await handle.value(last, timeout=60)


async def test_flows_are_removed_when_their_outcomes_are(tmp_path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage", history_max_age=3600)
        is_broken = True

        @queue.job(max_attempts=1)
        async def job(n: int) -> int:
            if n == 2 and is_broken:
                raise ValueError
            return n

        handles = list[FlowHandle]()
        for delay in (0, 0, 4000):
            flow = await queue.new_flow()
            first = flow.options(delay=delay).add(job, len(handles) + 1)
            flow.options(after=[first]).add(job, 0)
            handles.append(await flow.enqueue())
        await queue.work(until_idle=True)
        runtime.clock.advance(4000)
        await queue.work(until_idle=True)
        assert [info.id async for info in queue.flows()] == [handles[2].id]
        with pytest.raises(pelton.FlowNotFoundError):
            await handles[0].outcome()
        # The dead letter is still there: it runs alone.
        is_broken = False
        [letter] = [letter async for letter in queue.dead_letters()]
        redriven = await queue.redrive(letter.outcome.id)
        await queue.work(until_idle=True)
        assert await redriven.value() == 2
        assert [info.id async for info in queue.flows()] == [handles[2].id]
        stream = await jet.stream("JOBS_garage_flows")
        left = {one.subject.split(".")[3] for one in [m async for m in _messages(stream)]}
        assert left == {handles[2].id}


async def test_a_flow_that_was_never_begun_is_removed() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue = await jet.queue("garage")

        @queue.job
        async def job(padding: str) -> int:
            return len(padding)

        stream, handles = None, list[FlowHandle]()
        for is_begun in (False, True):
            flow = await queue.new_flow()
            for _ in range(300):
                flow.options(delay=10 * 86_400).add(job, "x" * 2000)
            parts = flow.messages()[:-1]
            assert len(parts) > 1
            stream = stream or await jet.stream("JOBS_garage_flows")
            if is_begun:
                handles.append(await flow.enqueue())
            else:
                await jet.publish_batch([(one.subject, one.data) for one in parts])
        await queue.work(until_idle=True)
        runtime.clock.advance(2 * 86_400)
        assert stream is not None
        cleaning = FlowCleaning(queue._context)
        for _ in range(11):
            # It might be begun yet, if only the clock is ahead.
            assert len({one.subject.split(".")[3] async for one in _messages(stream)}) == 2
            await cleaning.clean(stream)
            runtime.clock.advance(60)
        assert {one.subject.split(".")[3] async for one in _messages(stream)} == {handles[0].id}
        assert (await handles[0].status()).size == 300


async def test_a_lost_consumer_enqueues_nothing_twice() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        queue, ran = await jet.queue("garage"), list[int]()

        @queue.job
        async def job(n: int) -> int:
            ran.append(n)
            return n

        async def run(numbers: list[int]) -> None:
            flow = await queue.new_flow()
            node = flow.add(job, numbers[0])
            for number in numbers[1:]:
                node = flow.options(after=[node]).add(job, number)
            handle = await flow.enqueue()
            await queue.work(until_idle=True)
            assert (await handle.status()).state == "completed"

        await run([1, 2, 3])
        # Longer than message ids are known.
        runtime.clock.advance(600)
        await (await jet.stream("JOBS_garage_flows")).delete_consumer("flows")
        await run([4, 5])
        assert ran == [1, 2, 3, 4, 5]


async def _messages(stream: Stream) -> AsyncIterator[StoredMessage]:
    seq = 1
    while True:
        try:
            found = await stream.get_next_message(">", seq)
        except pelton.MessageNotFoundError:
            return
        yield found
        seq = found.seq + 1


async def test_wrong_flows_are_refused(jet: Jet, queue: Queue) -> None:
    other = await jet.queue("other")

    @queue.job
    async def job(n: int, m: int = 0) -> int:
        return n

    @other.job
    async def elsewhere() -> None: ...

    flow, second = await queue.new_flow(), await queue.new_flow()
    node, foreign = flow.add(job, 1), second.add(job, 1)
    with pytest.raises(pelton.JobArgumentsError, match="Expected `int`"):
        flow.add(job, node.result, m="1")  # type: ignore[arg-type]
    with pytest.raises(pelton.JobArgumentsError, match="unexpected keyword"):
        flow.add(job, node.result, x=1)  # type: ignore[call-arg]
    with pytest.raises(pelton.ConfigError, match="give its result"):
        flow.add(job, node)  # type: ignore[arg-type]
    with pytest.raises(pelton.ConfigError, match="results and other values"):
        flow.add(job, [node.result, 1])  # type: ignore[arg-type]
    with pytest.raises(pelton.ConfigError, match="another flow"):
        flow.add(job, foreign.result)
    with pytest.raises(pelton.ConfigError, match="another flow"):
        flow.options(after=[foreign])
    with pytest.raises(pelton.ConfigError, match="another queue"):
        flow.add(elsewhere)
    with pytest.raises(pelton.ConfigError, match="unique is not for"):
        flow.options(unique="arguments")
    with pytest.raises(pelton.ConfigError, match="on_failure"):
        flow.options(on_failure="go")  # type: ignore[typeddict-item]
    with pytest.raises(pelton.ConfigError, match="has no jobs"):
        await (await queue.new_flow()).enqueue()
    with pytest.raises(pelton.JobArgumentsError, match="by name"):
        flow.add("unknown", 1)
    with pytest.raises(pelton.FlowNotFoundError):
        await queue.flow("nothing").status()
    with pytest.raises(pelton.ConfigError, match="not the id"):
        queue.flow("*")
    with pytest.raises(pelton.ConfigError, match="no flows are"):
        [info async for info in queue.flows(state="waiting")]  # type: ignore[arg-type]


async def test_jobs_of_a_flow_are_known_by_name_and_pass_hooks(jet: Jet, queue: Queue, another: OpenQueue) -> None:
    seen = list[str]()

    @queue.on_enqueue
    def note(call: pelton.JobCall) -> pelton.JobCall:
        return call.with_meta(trace=f"t{len(call.args)}")

    @queue.job
    async def job(context: pelton.JobContext, n: int) -> int:
        seen.append(context.meta["trace"])
        return n + 1

    elsewhere = await another("garage")
    flow = await queue.new_flow()
    flow.add("job", n=flow.add(job, 1).result)
    handle = await flow.enqueue()
    foreign = await elsewhere.new_flow()
    foreign.add("other", n=foreign.add("job", n=3).result)
    await drain(queue)
    assert (await handle.value(timeout=60), seen) == (3, ["t7", "t2"])
    with pytest.raises(pelton.JobArgumentsError):
        foreign.add("other", n=object())


async def test_a_job_starts_a_flow_as_it_completes(jet: Jet, queue: Queue) -> None:
    attempts = list[int]()

    @queue.job
    async def leaf(n: int) -> int:
        return n

    @queue.job(backoff=FAST)
    async def start(context: pelton.JobContext) -> str:
        flow = await queue.new_flow()
        flow.add(leaf, flow.add(leaf, 7).result)
        async with context.transaction() as tx:
            handle = await tx.enqueue_flow(flow)
            tx.result = handle.id
            attempts.append(context.attempt)
            if context.attempt == 1:
                raise ValueError("undone")
        return ""

    started = await start.enqueue()
    await drain(queue)
    flow_id = await started.value(timeout=60)
    assert await queue.flow(flow_id).value(timeout=60) == 7
    assert ([info.id async for info in queue.flows()], attempts) == ([flow_id], [1, 2])


async def test_a_job_of_a_flow_is_not_moved(jet: Jet, queue: Queue) -> None:
    @queue.job
    async def job() -> None: ...

    flow = await queue.new_flow()
    node = flow.options(delay=60).add(job)
    handle = await flow.enqueue()
    await queue.work(until_idle=True)
    with pytest.raises(pelton.ConfigError, match="stays in its queue"):
        await queue.move((await handle.job(node)).id, await jet.queue("other"))
    assert await queue.purge() == 1
    await queue.work(until_idle=True)
    assert (await handle.outcome(timeout=60)).state == "cancelled"


def test_flows_without_await(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "store.pelton") as jet:
        queue = jet.queue("garage")

        @queue.job
        def job(n: int) -> int:
            return n + 1

        flow = queue.new_flow("blocking")
        nodes = [flow.add(job, n) for n in range(3)]
        flow.options(after=nodes).add(job, nodes[0].result)
        handle = flow.enqueue()
        queue.work(until_empty=True)
        assert handle.value(timeout=60) == 2
        assert handle.job(nodes[2]).value(timeout=60) == 3
        assert [info.name for info in queue.flows()] == ["blocking"]


@ON_BOTH
async def test_jobs_of_a_flow_are_told_of(jet: Jet) -> None:
    queue = await jet.queue("garage", lease=5)

    @queue.job
    async def job(n: int) -> int:
        return n

    flow = await queue.new_flow()
    flow.add(job, flow.add(job, 1).result)
    async with queue.events("enqueued", "completed") as events:
        handle = await flow.enqueue()
        await drain(queue)
        told = [await events.next(timeout=20) for _ in range(4)]
    ids = [node.id for node in (await handle.status()).nodes]
    assert sorted((event.kind, event.id) for event in told) == sorted(
        (kind, job_id) for kind in ("enqueued", "completed") for job_id in ids
    )
    assert {event.job for event in told} == {"job"}, "its own name, not that under which it is stored"


@ON_BOTH
@BOTH_KINDS
async def test_a_job_adds_jobs_to_its_flow(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    ran = list[str]()

    @queue.job
    async def page(n: int) -> int:
        ran.append(f"page {n}")
        return n

    @queue.job
    async def add(pages: list[int]) -> int:
        ran.append("add")
        return sum(pages)

    @queue.job(backoff=FAST)
    async def split(count: int, context: JobContext) -> int:
        more = pelton.FlowExtension(context)
        # The first attempt adds others, and does not complete.
        numbers = range(count) if context.attempt > 1 else range(100, 105)
        pages = [more.options(key=f"k{n % 2}").add(page, n) for n in numbers]
        more.add(add, [one.result for one in pages])
        if context.attempt == 1:
            raise ValueError("not yet")
        return count

    @queue.job
    async def tell(count: int) -> str:
        ran.append("tell")
        return f"{count} pages"

    flow = await queue.new_flow()
    parts = flow.options(key="k").add(split, 3)
    flow.add(tell, parts.result)
    handle = await flow.enqueue()
    await drain(queue)
    info = await handle.outcome(timeout=60)
    assert [(node.job, node.state) for node in info.nodes] == [
        *[(job, "completed") for job in ("split", "tell", "page", "page", "page", "add")]
    ]
    assert [node.added_by for node in info.nodes] == [None, None, 0, 0, 0, 0]
    assert [node.after for node in info.nodes] == [(), (0, 5), (0,), (0,), (0,), (0, 2, 3, 4)]
    assert ran[-2:] == ["add", "tell"]
    assert sorted(ran) == ["add", "page 0", "page 1", "page 2", "tell"]
    assert await handle.value(timeout=60) == "3 pages"
    assert await queue.flow(handle.id).value(timeout=60) == "3 pages"
    assert [(one.state, one.size) async for one in queue.flows()] == [("completed", 6)]


@ON_BOTH
@BOTH_KINDS
async def test_the_jobs_of_a_flow_have_tenants(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive, lease=5)
    tenants = list[str]()

    @queue.job
    async def page(n: int) -> int:
        return n

    @queue.job
    async def split(count: int, context: JobContext) -> int:
        more = pelton.FlowExtension(context)
        for n in range(count):
            more.options(tenant=f"t {n}", priority=n).add(page, n)
        tenants.extend([info.tenant async for info in queue.jobs()])
        return count

    flow = await queue.new_flow()
    first = [flow.options(tenant="a.b").add(split, 2), flow.options(tenant="other", delay=0.2).add(page, 3)]
    last = flow.options(tenant="a.b", priority=2).add(page, first[0].result)
    flow.options(tenant="never", after=[last], delay=3600).add(page, 7)
    handle = await flow.enqueue()
    async with working(queue), asyncio.timeout(30):
        while [one.state for one in (await handle.status()).nodes].count("completed") < 5:
            await asyncio.sleep(0.02)
        assert await (await handle.job(last)).value(timeout=60) == 2
        assert [(one.job, one.tenant, one.state) async for one in queue.jobs()] == [("page", "never", "scheduled")]
        assert await handle.cancel()
        info = await handle.outcome(timeout=60)
    assert "a.b" in tenants
    assert (info.state, [node.state for node in info.nodes].count("cancelled")) == ("cancelled", 1)
    assert (await queue.counts()).unfinished == 0


async def test_what_was_added_fails_and_is_redriven_as_other_jobs(queue: Queue) -> None:
    is_broken = True

    @queue.job(max_attempts=1)
    async def check() -> str:
        if is_broken:
            raise ValueError("broken")
        return "well"

    @queue.job
    def split(context: JobContext) -> None:
        pelton.FlowExtension(context).add("check")

    @queue.job
    async def tell(context: JobContext) -> str:
        return context.job

    flow = await queue.new_flow()
    flow.options(after=[flow.add(split)]).add(tell)
    handle = await flow.enqueue()
    await drain(queue)
    assert states(await handle.outcome(timeout=60)) == ["completed", "cancelled", "failed"]
    is_broken = False
    [letter] = [letter async for letter in queue.dead_letters()]
    await queue.redrive(letter.outcome.id)
    assert states(await handle.status()) == ["completed", "waiting", "enqueued"]
    await drain(queue)
    assert states(await handle.outcome(timeout=60)) == ["completed"] * 3


async def test_only_a_job_of_a_flow_adds_to_it(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def alone(context: JobContext) -> None:
        pelton.FlowExtension(context)

    handle = await alone.enqueue()
    await drain(queue)
    with pytest.raises(JobFailedError, match="not of a flow"):
        await handle.value()
