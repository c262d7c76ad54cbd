"""Who may look, who may act, and what an action does, on a file and on a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pelton
from pelton.dashboard.door import DashboardDoor
from tests.dashboard.conftest import TOKEN, Client


def form_token(page: str) -> str:
    (found,) = re.findall(r'name="form_token" value="(\w+)"', page)
    return str(found)


async def test_actions_are_asked_about_and_done(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    async with client(actions=True) as browser:
        page = (await browser.get("/queues/garage")).text
        assert f'/queues/garage/redrive?id={ids[1]}"' in page
        asked = await browser.get(f"/queues/garage/redrive?id={ids[1]}")
        assert "Put this failed job into the queue again?" in asked.text
        form = {"form_token": form_token(asked.text), "id": ids[1]}
        done = await browser.post("/queues/garage/redrive", data=form)
        assert (done.status_code, done.headers["location"]) == (303, "/queues/garage?done=redrive")
        shown = (await browser.get(done.headers["location"])).text
        assert "The job is in the queue again." in shown
        assert 'garage.dead_letters">0<' in shown
        assert (await browser.post("/queues/garage/redrive", data=form)).status_code == 404
        assert (await browser.post("/queues/garage/cancel", data={**form, "id": ids[2]})).status_code == 303
        assert (await (await jet.queue("garage")).get(ids[2])).state == "cancelled"
        assert (await browser.post("/queues/garage/cancel", data={**form, "id": "none"})).status_code == 404
        assert (await browser.post("/queues/garage/redrive-all", data=form)).status_code == 303
        assert (await browser.post("/queues/none/pause", data=form)).status_code == 404


async def test_a_queue_is_paused_and_goes_on(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    async with client(actions=True) as browser:
        form = {"form_token": form_token((await browser.get("/queues/garage/pause")).text)}
        assert (await browser.post("/queues/garage/pause", data=form)).status_code == 303
        assert "paused" in (await browser.get("/consumers")).text
        assert (await browser.post("/queues/garage/resume", data=form)).status_code == 303
        assert ">paused<" not in (await browser.get("/consumers")).text


async def test_a_form_of_another_site_does_nothing(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    async with client(actions=True) as browser:
        form = {"form_token": form_token((await browser.get("/queues/garage/pause")).text)}
        for data, headers in (
            ({}, {}), ({"form_token": "0" * 64}, {}), (form, {"sec-fetch-site": "cross-site"}),
            (form, {"cookie": "pelton_visitor=another"}), ({"form_token": "\u00e4"}, {}),
        ):  # fmt: skip
            if "cookie" in headers:
                browser.cookies.clear()
            refused = await browser.post("/queues/garage/pause", data=data, headers=headers)
            assert refused.status_code == 403
        assert (await browser.post("/queues/garage/pause", content=b"x" * 10_000)).status_code == 413
    stream = await jet.stream("JOBS_garage")
    for name in await stream.consumer_names():
        assert not (await (await stream.consumer(name)).info()).paused


async def test_there_are_no_actions_unless_they_are_allowed(client: Client, ids: list[str], tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "c.pelton") as jet:
        await jet.queue("garage")
    async with pelton.open(tmp_path / "c.pelton", read_only=True) as look:
        for browser in (client(), client(token=TOKEN, actions=False), client(look, actions=True)):
            browser.headers["authorization"] = f"Bearer {TOKEN}"
            assert "Pause" not in (await browser.get("/queues/garage")).text
            assert (await browser.get("/queues/garage/pause")).status_code == 404
            assert (await browser.post("/queues/garage/pause", data={})).status_code == 404


async def test_who_does_not_give_the_token_sees_nothing(client: Client, ids: list[str]) -> None:
    async with client(token=TOKEN) as browser:
        for path in ("/", "/metrics", "/queues/garage", "/events", "/streams/orders"):
            assert (await browser.get(path)).status_code == 401
        assert (await browser.get("/static/style.css")).status_code == 200
        sent = await browser.get("/", headers={"accept": "text/html"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login")
        assert "Give the token" in (await browser.get("/login")).text
        assert "not the token" in (await browser.post("/login", data={"token": TOKEN + "x"})).text
        assert (await browser.get("/", headers={"authorization": f"Bearer {TOKEN}x"})).status_code == 401
        assert (await browser.get("/", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200
        given = await browser.post("/login", data={"token": TOKEN})
        assert given.status_code == 303
        cookie = given.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert "Pause" in (await browser.get("/queues/garage")).text
    async with client() as browser:
        assert (await browser.get("/login")).headers["location"] == "/"
    with pytest.raises(pelton.ConfigError, match="at least 16"):
        client(token="short")


async def test_only_its_own_names_are_answered_to(client: Client, ids: list[str]) -> None:
    async with client(hosts=["testserver"]) as browser:
        assert (await browser.get("/")).status_code == 200
        assert (await browser.get("/", headers={"host": "evil.example:80"})).status_code == 421


@pytest.mark.parametrize(
    ("host", "known"),
    [("localhost:80", True), ("LOCALHOST", True), ("[::1]:80", True), ("[::1]", True), ("x:80", False), ("", False)],
)
def test_names_of_hosts(host: str, known: bool) -> None:
    door = DashboardDoor(b"secret", token="", actions=False, hosts=frozenset({"localhost", "[::1]"}))
    assert door.knows_host(host) is known
