"""Jobs and dead letters as lists: pages by cursor, from either end, filtered, from a file and from a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import pelton
from pelton import observe
from pelton.observe import JobSelection
from pelton.queue import JobState, Queue


@pytest.fixture(params=["plain", "tenants", "exclusive"])
async def trouble(
    jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[dict[str, list[str]]]:
    """A queue with jobs in every state, while its worker runs two; their ids by state, in the order of enqueueing."""
    monkeypatch.setattr("pelton.queue.run.worker._EVERY_S", 0.05)
    monkeypatch.setattr("pelton.observe.job_lists._WINDOW", 2)
    is_exclusive = request.param == "exclusive"
    shop = await jet.queue("shop", exclusive=is_exclusive)
    tenants = ("acme", "b") if request.param == "tenants" else ("", "")
    go = asyncio.Event()

    @shop.job(backoff=[3600])
    async def charge(order: int) -> None:
        raise ConnectionError(f"no answer for {order}")

    @shop.job(max_attempts=1)
    async def parse(order: int) -> int:
        if order % 2:
            raise ValueError(f"bad order {order}\nmore")
        return order

    @shop.job
    async def long(order: int) -> None:
        await go.wait()

    @shop.job
    async def send(order: int) -> None: ...

    await shop.limit(job="send", rate=pelton.Rate(1, per=3600))

    def options_of(job: Any, order: int) -> Any:
        # A job that is tried again, or held, keeps its key from others.
        key = f"{job.name}-{order}" if is_exclusive else f"k{order % 2}"
        return job.options(key=key, tenant=tenants[order % 2])

    made: dict[str, list[str]] = {}
    for name, job, count in (("retrying", charge, 5), ("ended", parse, 8), ("running", long, 2), ("held", send, 4)):
        handles = [await options_of(job, order).enqueue(order) for order in range(count)]
        made[name] = [handle.id for handle in handles]
    made["failed"], made["completed"] = made["ended"][1::2], made.pop("ended")[::2]
    working = asyncio.ensure_future(shop.work(concurrency=3, handle_signals=False))
    async with asyncio.timeout(120):
        while (counts := await shop.counts()).pending or counts.held < 3 or counts.retrying < 5 or counts.running < 2:
            await asyncio.sleep(0.05)
        while not all([(await shop.get(one)).worker for one in made["running"]]):
            await asyncio.sleep(0.05)
    # Which of them started is up to the turns of tenants.
    begun = [one for one in made["held"] if (await shop.get(one)).state == "completed"]
    made["held"] = [one for one in made["held"] if one not in begun]
    made["completed"] += begun
    # Jobs of different keys end in any order, which is that of the lists of those that have ended.
    made["bad"] = made["failed"]
    made["failed"] = [letter.outcome.id async for letter in shop.dead_letters()]
    assert sorted(made["failed"]) == sorted(made["bad"])
    await shop.pause()
    made["scheduled"] = [(await send.options(delay=3600).enqueue(order)).id for order in range(3)]
    made["pending"] = [(await options_of(send, order).enqueue(order)).id for order in range(5)]
    yield made
    go.set()
    shop.stop()
    await working


async def _all(look: pelton.Jet, wanted: JobSelection, limit: int = 2, **options: Any) -> list[str]:
    """Return the ids of all pages, each of which is full but the last."""
    found, cursor = list[str](), ""
    while True:
        page = await observe.list_jobs(look, "shop", wanted, cursor=cursor, limit=limit, within=60, **options)
        found += [job.id for job in page.jobs]
        assert all(wanted.state in ("", job.state) for job in page.jobs)
        cursor = page.cursor
        if not cursor:
            return found
        assert len(page.jobs) == limit


async def test_every_state_is_a_list_with_pages(
    jet: pelton.Jet, look: pelton.Jet, trouble: dict[str, list[str]]
) -> None:
    states: tuple[JobState, ...] = ("pending", "scheduled", "held", "failed")
    for state in states:
        expected = trouble[state]
        assert await _all(look, JobSelection(state=state), oldest_first=True) == expected, state
        assert await _all(look, JobSelection(state=state)) == expected[::-1], state
        assert await _all(look, JobSelection(state=state), limit=100) == expected[::-1], state
    unordered: tuple[JobState, ...] = ("completed", "retrying", "running")
    for state in unordered:
        assert sorted(await _all(look, JobSelection(state=state))) == sorted(trouble[state]), state
    unfinished = [one for state in ("retrying", "running", "held", "scheduled", "pending") for one in trouble[state]]
    assert await _all(look, JobSelection(), oldest_first=True) == unfinished
    assert await _all(look, JobSelection()) == unfinished[::-1]
    by_due = [job.due for job in (await observe.list_jobs(look, "shop", JobSelection(state="retrying"))).jobs]
    if look.backend.planning.own_verbs:
        assert by_due == sorted(by_due)
    (first, second) = (await observe.list_jobs(look, "shop", JobSelection(state="running"))).jobs
    assert first.worker
    assert 0 < first.started_at <= second.started_at


async def test_lists_are_filtered(jet: pelton.Jet, look: pelton.Jet, trouble: dict[str, list[str]]) -> None:
    queue = await jet.queue("shop")
    key, of_key = ("charge-1", slice(1, 2)) if queue.exclusive else ("k1", slice(1, None, 2))
    assert await _all(look, JobSelection(key=key, job="charge"), oldest_first=True) == trouble["retrying"][of_key]
    assert await _all(look, JobSelection(key=key, state="retrying", job="charge")) != []
    assert await _all(look, JobSelection(key="parse-1" if queue.exclusive else "k1", state="failed")) != []
    assert await _all(look, JobSelection(key="nobody's")) == []
    assert await _all(look, JobSelection(state="retrying", error="for 3")) == [trouble["retrying"][3]]
    assert await _all(look, JobSelection(state="failed", error="order 5")) == [trouble["bad"][2]]
    assert len(await _all(look, JobSelection(state="failed", error="ValueError: bad order #"))) == 4
    assert await _all(look, JobSelection(state="failed", error="elsewhere")) == []
    assert await _all(look, JobSelection(state="pending", job="charge")) == []
    middle = (await queue.get(trouble["pending"][2])).enqueued_at
    assert await _all(look, JobSelection(state="pending", since=middle), oldest_first=True) == trouble["pending"][2:]
    assert await _all(look, JobSelection(state="pending", until=middle), oldest_first=True) == trouble["pending"][:3]
    for wrong in ("x", "1" * 30, "-1", "\u0661"):
        with pytest.raises(pelton.ConfigError):
            await observe.list_jobs(look, "shop", cursor=wrong)
    with pytest.raises(pelton.QueueNotFoundError):
        await observe.list_jobs(look, "none")


async def test_dead_letters_newest_first_and_by_error(
    jet: pelton.Jet, look: pelton.Jet, trouble: dict[str, list[str]]
) -> None:
    first = await observe.list_dead_letters(look, "shop", limit=3, within=60)
    assert [one.outcome.id for one in first.letters] == trouble["failed"][:0:-1]
    rest = await observe.list_dead_letters(look, "shop", limit=3, cursor=first.cursor, within=60)
    assert ([one.outcome.id for one in rest.letters], rest.cursor) == (trouble["failed"][:1], "")
    oldest = await observe.list_dead_letters(look, "shop", limit=2, oldest_first=True, within=60)
    assert [one.outcome.id for one in oldest.letters] == trouble["failed"][:2]
    found = await observe.list_dead_letters(look, "shop", JobSelection(error="order 3", job="parse"), within=60)
    assert [one.outcome.id for one in found.letters] == trouble["bad"][1:2]
    grouped = await observe.group_dead_letters(look, "shop", within=60)
    (group,) = grouped.groups
    assert (group.error, group.number, group.last_id, group.job) == (
        "ValueError: bad order #", 4, trouble["failed"][-1], "parse",
    )  # fmt: skip
    assert (grouped.is_whole, grouped.looked_at) == (True, 4)
    with pytest.raises(pelton.QueueNotFoundError):
        await observe.list_dead_letters(look, "none")


async def test_a_list_ends_in_time_and_goes_on(jet: pelton.Jet, look: pelton.Jet) -> None:
    shop: Queue = await jet.queue("shop")
    for number in range(5):
        await shop.enqueue("send", order=number)
    wanted, cursor, found = JobSelection(job="nosuch"), "", 0
    for oldest_first in (True, False):
        while True:
            page = await observe.list_jobs(look, "shop", wanted, cursor=cursor, within=0, oldest_first=oldest_first)
            found += len(page.jobs)
            if not page.cursor:
                break
            assert page.cursor != cursor
            cursor = page.cursor
        cursor = ""
    assert found == 0
