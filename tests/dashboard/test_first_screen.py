"""The first screen: which store this is, and whether all is well, said before somebody asks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import pelton
from pelton.api.wording import without_login
from tests.dashboard.conftest import TOKEN, Client


async def test_every_page_says_which_store_it_is(client: Client, ids: list[str]) -> None:
    async with client(path="/data/workshop.pelton") as browser:
        for path in ("/", "/queues/garage", "/nothing"):
            page = (await browser.get(path)).text
            assert re.search(r"<title>[^<]+ - workshop.pelton</title>", page), path
            assert 'class="brand"><a href="/">workshop.pelton</a>' in page
    async with client(path="/data/workshop.pelton", name="Hall <2>") as browser:
        assert "- Hall &lt;2&gt;</title>" in (await browser.get("/")).text


@pytest.mark.parametrize(
    ("address", "shown"),
    [("nats://h:4222", "nats://h:4222"), ("nats://u:p@h", "nats://h"), ("tls://a:b@h1,c:d@h2", "tls://h2"), ("h", "h")],
)
def test_a_name_of_a_cluster_has_no_password(address: str, shown: str) -> None:
    assert without_login(address) == shown


async def test_the_band_is_green_or_says_what_is_wrong(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "workshop.pelton"
    async with pelton.open(path) as jet:
        garage = await jet.queue("garage")
        async with client(jet) as browser:
            page = (await browser.get("/")).text
            assert '<section class="band" data-live-state="store.state" data-state="good"' in page
            assert "All is well" in page
        await garage.pause()
        async with client(jet) as browser:
            page = (await browser.get("/")).text
            assert '<section class="band" data-live-state="store.state" data-state="bad"' in page
            for part in ("1 alarm<", "It is paused.", 'data-state="paused"'):
                assert part in page
        # The header of every other page says so, too, whichever is opened first, and before a login nothing is said.
        for path in ("/streams", "/locks", "/queues/garage", "/queues/garage/pause", "/nothing", "/queues/none"):
            async with client(jet, actions=True) as browser:
                assert 'data-state="bad">1 alarm</a>' in (await browser.get(path)).text, path
        async with client(jet, token=TOKEN) as browser:
            assert "data-live=" not in (await browser.get("/login")).text


async def test_what_pelton_keeps_for_itself_is_folded(client: Client, ids: list[str]) -> None:
    async with client() as browser:
        overview = (await browser.get("/")).text
        assert overview.index('href="/queues/garage"') < overview.index('href="/streams/orders"')
        assert "JOBS_garage" not in overview
        for path in ("/streams", "/consumers"):
            own, _, internal = (await browser.get(path)).text.partition("<details>")
            assert ("orders" in own, "JOBS_garage" in own, "JOBS_garage" in internal) == (True, False, True)


async def test_workers_of_all_queues(client: Client, jet: pelton.Jet) -> None:
    garage = await jet.queue("garage")

    @garage.job
    async def look() -> None:
        # Until the worker has told that it runs this.
        async with client(every=0.0) as browser:
            while 'data-state="running"' not in (page := (await browser.get("/workers")).text):
                pass
        assert 'href="/queues/garage">garage</a>' in page
        assert f", {os.getpid()}<" in page

    handle = await look.enqueue()
    await garage.work(until_empty=True, handle_signals=False)
    assert (await handle.info()).state == "completed"
