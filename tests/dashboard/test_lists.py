"""Jobs and dead letters as lists with pages, and what is done with those chosen, or all that match."""

from __future__ import annotations

import asyncio
import html
import re

import pytest

import pelton
from pelton import observe
from tests.dashboard.conftest import HOSTILE, Client
from tests.dashboard.test_actions import form_token


@pytest.fixture(params=["plain", "exclusive"])
async def many(
    jet: pelton.Jet, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> dict[str, list[str]]:
    """A queue with 60 dead letters of three kinds of errors, and 40 jobs that wait."""
    caplog.set_level("CRITICAL", "pelton.queue")
    shop = await jet.queue("shop", exclusive=request.param == "exclusive")

    @shop.job(max_attempts=1)
    async def charge(order: int) -> None:
        raise ValueError(f"{('no card', 'expired', HOSTILE)[order % 3]} {order}")

    failed = [handle.id for handle in await charge.enqueue_many([(number,) for number in range(60)])]
    await shop.work(until_empty=True, handle_signals=False)
    waiting = [(await charge.options(key=f"k{number % 2}").enqueue(number)).id for number in range(40)]
    return {"failed": failed, "waiting": waiting}


def _ids(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'type="checkbox" name="id" value="([^"]*)"', page)]


def _next(page: str) -> str:
    (found,) = re.findall(r'class="more"><a href="([^"]*)"', page)
    return html.unescape(str(found))


async def test_jobs_and_dead_letters_have_pages(client: Client, many: dict[str, list[str]]) -> None:
    async with client(actions=True) as browser:
        for page, expected in (
            ("/jobs?queue=shop", many["waiting"][::-1]), ("/jobs?queue=shop&order=oldest", many["waiting"]),
            ("/dead", None), ("/jobs?state=failed", None),
        ):  # fmt: skip
            found, at = list[str](), page
            while True:
                text = (await browser.get(at)).text
                found += _ids(text)
                if 'class="more"' not in text:
                    break
                at = _next(text)
            assert sorted(found) == sorted(expected or many["failed"])
            assert found == (expected or found)
        text = (await browser.get("/dead")).text
        assert "ValueError: no card #" in text
        assert "<script>alert" not in text
        # Each kind of error leads to its dead letters.
        links = [html.unescape(one) for one in re.findall(r'href="(/dead[^"]*error=[^"]*)"', text)]
        assert sorted([len(_ids((await browser.get(link)).text)) for link in links]) == [20, 20, 20]
        keyed = (await browser.get("/jobs", params={"key": "k1", "queue": "shop"})).text
        assert _ids(keyed) == many["waiting"][::-1][::2]
        # What was asked for is in the form again, whatever it is.
        again = (await browser.get("/jobs", params={"key": HOSTILE, "error": HOSTILE})).text
        assert "<script>alert" not in again
        assert (await browser.get("/jobs?queue=shop&cursor=x")).status_code == 404
        assert (await browser.get("/jobs?state=nosuch&last=x&since=-1&order=y")).status_code == 200


async def test_some_are_chosen(client: Client, many: dict[str, list[str]], jet: pelton.Jet) -> None:
    shop, chosen = await jet.queue("shop"), many["failed"][3:6]
    async with client(actions=True) as browser:
        asked = await browser.get("/queues/shop/discard", params={"id": chosen, "from": "/dead"})
        assert "Discard 3 dead letters?" in asked.text
        # Enter goes back.
        assert re.search(r"<a [^>]*autofocus>No, go back</a> <button class=.danger.>Yes, discard", asked.text)
        form = {"form_token": form_token(asked.text), "id": [*chosen, "nosuch"], "from": "/dead"}
        done = await browser.post("/queues/shop/discard", data=form)
        assert done.headers["location"] == "/dead?queue=shop&done=discard&n=3&left=0"
        assert "3 dead letters are removed." in (await browser.get(done.headers["location"])).text
        assert {one.outcome.id async for one in shop.dead_letters()} == {*many["failed"]} - {*chosen}
        form = {"form_token": form_token(asked.text), "id": many["waiting"][:4], "from": "//evil.example"}
        done = await browser.post("/queues/shop/cancel", data=form)
        assert done.headers["location"] == "/queues/shop?done=cancel&n=4&left=0"
        assert len([job async for job in shop.jobs()]) == 36


async def test_all_that_match_are_counted_and_done(client: Client, many: dict[str, list[str]], jet: pelton.Jet) -> None:
    shop = await jet.queue("shop")
    async with client(actions=True) as browser:
        page = (await browser.get("/dead", params={"error": "no card #"})).text
        (link,) = [one for one in re.findall(r'href="([^"]*)"', page) if "redrive?all=1&amp;from=/dead" in one]
        asked = await browser.get(html.unescape(link))
        assert "Redrive 20 dead letters?" in asked.text
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.text))
        done = await browser.post(
            "/queues/shop/redrive", data={name: html.unescape(one) for name, one in fields.items()}
        )
        assert "20 failed jobs are in the queue again." in (await browser.get(done.headers["location"])).text
        assert len([one async for one in shop.dead_letters()]) == 40
        # All of a queue: its name is typed.
        asked = await browser.get("/queues/shop/discard?all=1")
        assert "Discard 40 dead letters?" in asked.text
        assert "Type the name of the queue" in asked.text
        form = {"form_token": form_token(asked.text), "all": "1", "typed": "shops"}
        refused = await browser.post("/queues/shop/discard", data=form)
        assert (refused.status_code, "Type the name as it is written" in refused.text) == (400, True)
        assert (await browser.post("/queues/shop/discard", data={**form, "typed": "shop"})).status_code == 303
        assert [one async for one in shop.dead_letters()] == []
        cancelled = await browser.post("/queues/shop/cancel", data={**form, "key": "k0", "state": "pending"})
        assert "n=20&left=0" in cancelled.headers["location"]
        assert (await browser.get("/queues/shop/cancel")).status_code == 400


async def test_a_purge_says_how_many_and_wants_the_name(
    client: Client, many: dict[str, list[str]], jet: pelton.Jet
) -> None:
    async with client(actions=True) as browser:
        asked = await browser.get("/queues/shop/purge")
        assert "60 jobs wait" in asked.text or "40 jobs wait" in asked.text
        form = {"form_token": form_token(asked.text)}
        assert (await browser.post("/queues/shop/purge", data=form)).status_code == 400
        assert (await browser.post("/queues/shop/purge", data={**form, "typed": "shop"})).status_code == 303
        assert (await (await jet.queue("shop")).counts()).pending == 0


async def test_one_look_is_for_all_viewers(
    client: Client, many: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = observe.list_dead_letters

    async def counted(jet: pelton.Jet, queue: str, *args: object, **options: object) -> observe.DeadLetterPage:
        asked.append(queue)
        return await real(jet, queue, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(observe, "list_dead_letters", counted)
    async with client(every=3600, actions=True) as browser:
        pages = await asyncio.gather(*(browser.get("/queues/shop") for _ in range(6)))
        assert {one.status_code for one in pages} == {200}
        assert len(asked) == 1
        form = {"form_token": form_token((await browser.get("/queues/shop/pause")).text)}
        await browser.post("/queues/shop/pause", data=form)
        assert "Paused: no job" in (await browser.get("/queues/shop")).text
        assert (await browser.get("/queues/none")).status_code == 404
