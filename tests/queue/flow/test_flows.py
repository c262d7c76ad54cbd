"""Flows from end to end, on a file and on a cluster."""

from __future__ import annotations

import pytest

import pelton
from pelton import FlowInfo, Jet
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain

BOTH_KINDS = pytest.mark.parametrize("exclusive", [False, True])


def states(info: FlowInfo) -> list[str]:
    return [node.state for node in info.nodes]


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
    info = await handle.outcome(timeout=20)
    assert (info.state, info.name, info.size) == ("completed", "pages", 6)
    assert states(info) == ["completed"] * 6
    assert await handle.value(last, timeout=5) == 24
    assert await (await handle.job(pages[1])).value(timeout=5) == "page" * 2
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
    info = await handle.outcome(timeout=20)
    assert (info.state, states(info)) == ("failed", ["failed", "cancelled", "cancelled", "completed"])
    assert "no net" in info.error
    assert ran == ["clean None"]
    outcome = await (await handle.job(parsed)).outcome(timeout=5)
    assert outcome.state == "cancelled"
    assert "'test_what_follows" not in outcome.error
    assert "no net" in outcome.error
    with pytest.raises(pelton.JobFailedError, match="no net"):
        await handle.value(parsed, timeout=5)
    assert (await queue.counts()).cancelled == 2
