"""The page of a job, the graph of a flow, limits and weights as forms, and a worker that is told to stop."""

from __future__ import annotations

import asyncio
import html

import pytest

import pelton
from pelton import observe
from tests.dashboard.conftest import HOSTILE, Client
from tests.dashboard.test_actions import form_token


async def test_limits_and_weights_are_set(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    garage = await jet.queue("garage")
    await garage.limit(job=HOSTILE, per_key=True, concurrency=2)
    await garage.options(tenant=HOSTILE).enqueue("repair", car="x")
    async with client(actions=True) as browser:
        page = (await browser.get("/queues/garage/limits")).text
        assert "<script>alert" not in page
        assert html.escape(HOSTILE, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
        token = {"form_token": form_token_of_first(page)}
        limit = {"job": "repair", "concurrency": "3", "starts": "10", "per": "60", "burst": "5", "limit": "1"}
        done = await browser.post("/queues/garage/limits", data=token | limit)
        assert "The limit holds" in (await browser.get(done.headers["location"])).text
        (_, made) = await garage.limits()
        assert (made.job, made.per_key, made.concurrency) == ("repair", False, 3)
        assert made.rate is not None
        assert (made.rate.starts, made.rate.per, made.rate.burst) == (10, 60, 5)
        gone = {"job": HOSTILE, "per_key": "1", "unlimit": "1"}
        assert (await browser.post("/queues/garage/limits", data=token | gone)).status_code == 303
        assert [one.job for one in await garage.limits()] == ["repair"]
        weight = {"tenant": HOSTILE, "weight": "7", "weigh": "1"}
        assert (await browser.post("/queues/garage/limits", data=token | weight)).status_code == 303
        assert await garage.weights() == {HOSTILE: 7}
        for wrong in ({"weigh": "1"}, {"limit": "1"}, {"limit": "1", "concurrency": "-1"}, {"starts": "x"}):
            assert (await browser.post("/queues/garage/limits", data=token | wrong)).status_code == 404
        assert (await browser.post("/queues/garage/limits", data=limit)).status_code == 403
        assert (await browser.get("/queues/none/limits")).status_code == 404
    async with client() as browser:
        assert (await browser.get("/queues/garage/limits")).status_code == 404


def form_token_of_first(page: str) -> str:
    """Return the token, which is the same in all forms of a page."""
    begin = page.index('name="form_token"')
    return form_token(page[begin : page.index(">", begin) + 1])


async def test_a_worker_is_told_to_stop(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    garage = await jet.queue("garage")
    working = asyncio.ensure_future(garage.work(handle_signals=False))
    async with client(actions=True, every=0.0) as browser, asyncio.timeout(60):
        while not (found := await garage.workers()):
            await asyncio.sleep(0.01)
        assert f"Stop worker {found[0].name}" in (await browser.get("/queues/garage")).text
        asked = await browser.get("/queues/garage/stop-worker", params={"id": found[0].name})
        form = {"form_token": form_token(asked.text), "id": found[0].name}
        for wrong in ("nobody", "*", ">", HOSTILE):
            assert (await browser.post("/queues/garage/stop-worker", data={**form, "id": wrong})).status_code == 404
        assert (await browser.post("/queues/garage/stop-worker", data=form)).status_code == 303
        await working
    assert await garage.workers() == []


async def test_the_page_of_a_job_says_what_it_waits_for(
    client: Client, jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pelton.queue.run.worker._EVERY_S", 0.05)
    shop = await jet.queue("shop", exclusive=True)
    begun, go = asyncio.Event(), asyncio.Event()

    @shop.job(max_attempts=2, backoff=[0])
    async def pack(order: int) -> None:
        if order == 1:
            begun.set()
            await go.wait()
        raise ValueError(HOSTILE)

    first = await pack.options(key="k").enqueue(1)
    second = await pack.options(key="k").enqueue(2)
    later = await pack.options(delay=3600).enqueue(3)
    async with client() as browser, asyncio.timeout(120):

        async def page(handle: pelton.JobHandle[None]) -> str:
            return (await browser.get(f"/queues/shop/jobs/{handle.id}")).text

        assert "a worker: none is there" in await page(first)
        working = asyncio.ensure_future(shop.work(handle_signals=False))
        await begun.wait()
        while not (await shop.get(first.id)).worker:
            await asyncio.sleep(0.01)
        running = await page(first)
        assert f"by worker {(await shop.get(first.id)).worker}" in running
        assert "Attempt 1 began" in running
        waits = await page(second)
        assert f'its key: job {first.id} comes first, which is running <a href="/queues/shop/jobs/{first.id}">' in waits
        assert "its time" in await page(later)
        await shop.pause(key="k")
        assert "jobs of its key are paused" in await page(second)
        await shop.pause()
        assert "the queue is paused" in await page(second)
        await shop.resume(key="k")
        await shop.resume()
        go.set()
        await first.outcome(timeout=60)
        shop.stop()
        await working
        ended = await page(first)
        assert ended.index("Enqueued") < ended.index("Attempt 1 failed") < ended.index("Failed</td>")
        assert "<script>alert" not in ended
        assert (await observe.job_with_details(jet, "shop", first.id)).waits_for == ""


async def test_a_flow_is_a_graph(client: Client, ids: list[str], flow: str) -> None:
    async with client() as browser:
        page = (await browser.get(f"/queues/garage/flows/{flow}")).text
        assert page.count("<rect") == 2
        assert '<g data-state="failed">' in page
        assert "<script>alert" not in page
