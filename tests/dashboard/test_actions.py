"""Who may look, who may act, and what an action does, on a file and on a cluster."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

import pelton
from pelton import observe
from pelton.cli.arguments import verbs_of
from pelton.cli.main import parser
from pelton.dashboard.access import AccessToken, DashboardDoor, LoginThrottle
from pelton.dashboard.actions import OTHER_COMMANDS, QUEUE_OPERATIONS, STREAM_OPERATIONS
from tests.dashboard.conftest import HOSTILE, TOKEN, Client
from tests.queue.helpers import working
from tests.queue.run.test_signals import until_waiting


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
        assert (await browser.get("/queues/garage/redrive?all=1")).status_code == 400
        assert (await browser.post("/queues/none/pause", data=form)).status_code == 404


async def test_a_queue_is_paused_and_goes_on(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    async with client(actions=True) as browser:
        form = {"form_token": form_token((await browser.get("/queues/garage/pause")).text)}
        assert (await browser.post("/queues/garage/pause", data=form)).status_code == 303
        assert "paused" in (await browser.get("/consumers")).text
        page = (await browser.get("/queues/garage")).text
        assert re.search(r'<div class="band" data-state="paused">\s*<p>Paused: no job of this queue starts', page)
        assert (await browser.post("/queues/garage/resume", data=form)).status_code == 303
        assert ">paused<" not in (await browser.get("/consumers")).text


async def test_everything_is_asked_about_first(client: Client, ids: list[str], flow: str, jet: pelton.Jet) -> None:
    garage, orders = await jet.queue("garage"), await jet.stream("orders")
    packer = await orders.consumer("packer")
    async with client(actions=True) as browser:

        async def do(page: str, operation: str, of: str, shown: str = "") -> str:
            """Follow the link of an operation on a page, and answer yes; return what is shown then."""
            links = map(
                html.unescape, re.findall(r'class="action(?: danger)?" href="([^"]*)"', (await browser.get(page)).text)
            )
            (asked,) = [link for link in links if link.partition("?")[0] == operation and unquote(link).endswith(of)]
            question = await browser.get(asked)
            assert of in html.unescape(question.text)
            form = {"form_token": form_token(question.text), "id": of, "typed": operation.split("/")[2]}
            done = await browser.post(operation, data=form)
            assert done.status_code == 303, done.text
            return (await browser.get(done.headers["location"])).text

        later = await garage.new_flow("later")
        later.options(delay=3600).add("repair", car="x")
        later_id = (await later.enqueue()).id
        page = await do(f"/queues/garage/flows/{later_id}", "/queues/garage/cancel-flow", later_id)
        assert "The flow is cancelled." in page
        assert "schedule is paused" in await do("/schedules", "/queues/garage/pause-schedule", HOSTILE)
        assert (await garage.schedules())[0].paused
        # Not their number: jobs that the worker of the fixture has put off fall due meanwhile.
        assert [job async for job in garage.jobs(job="paint")] == []
        assert "is in the queue" in await do("/schedules", "/queues/garage/run-schedule", HOSTILE)
        assert len([job async for job in garage.jobs(job="paint")]) == 1
        assert "schedule goes on" in await do("/schedules", "/queues/garage/resume-schedule", HOSTILE)
        assert not (await garage.schedules())[0].paused
        assert "consumer is paused" in await do("/consumers", "/streams/orders/pause-consumer", "packer")
        assert (await packer.info()).paused
        assert "consumer goes on" in await do("/streams/orders", "/streams/orders/resume-consumer", "packer")
        assert not (await packer.info()).paused
        assert "that waited are cancelled" in await do("/queues/garage", "/queues/garage/purge", "")
        assert [job async for job in garage.jobs(job="paint")] == []
        assert "messages are removed" in await do("/streams/orders", "/streams/orders/purge-stream", "")
        assert (await orders.info()).state.messages == 0


async def test_a_message_is_published(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    async with client(actions=True) as browser:
        asked = await browser.get("/streams/orders/publish")
        form = {
            "form_token": form_token(asked.text),
            "subject": "orders.new",
            "data": HOSTILE,
            "headers": "A: b\r\nC:d",
        }
        done = await browser.post("/streams/orders/publish", data=form)
        assert "The message is stored." in (await browser.get(done.headers["location"])).text
        stored = await (await jet.stream("orders")).get_last_message("orders.new")
        assert (stored.data.decode(), stored.headers["A"], stored.headers["C"]) == (HOSTILE, "b", "d")
        # A browser ends lines with both.
        await browser.post("/streams/orders/publish", data={**form, "data": "two\r\nlines"})
        assert (await (await jet.stream("orders")).get_last_message("orders.new")).data == b"two\nlines"
        for wrong in ({"subject": "elsewhere"}, {"subject": ""}, {"headers": "no name\x00: x"}):
            assert (await browser.post("/streams/orders/publish", data={**form, **wrong})).status_code == 404
        assert (await browser.post("/streams/orders/publish", data={"subject": "orders.new"})).status_code == 403
        # What a queue or a bucket keeps is not to be written by hand.
        for stream in ("JOBS_garage", "KV_settings"):
            assert "Publish" not in (await browser.get(f"/streams/{stream}")).text
            assert (await browser.get(f"/streams/{stream}/publish")).status_code == 404
            assert (await browser.post(f"/streams/{stream}/purge-stream", data=form)).status_code == 404
    assert (await (await jet.stream("orders")).info()).state.messages == 5


async def test_a_signal_is_sent_once_to_a_job_that_waits(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    garage = await jet.queue("garage")

    @garage.job
    async def approve(context: pelton.JobContext) -> list[object]:
        return [await context.wait_for("approved"), await context.wait_for("approved")]

    handle = await garage.enqueue(approve)
    async with working(garage), client(actions=True) as browser:
        await until_waiting(garage, handle.id)
        job = f"/queues/garage/jobs/{handle.id}"
        assert f'href="{job}/signal?signal=approved"' in (await browser.get(job)).text
        asked = (await browser.get(f"{job}/signal?signal=approved")).text
        form = dict(re.findall(r'name="(\w+)" value="(\w*)"', asked))
        wrong = await browser.post(f"{job}/signal", data={**form, "value": '{"by": <b>'})
        assert (wrong.status_code, "not JSON" in wrong.text, "&lt;b&gt;" in wrong.text) == (400, True, True)
        for _ in range(2):
            done = await browser.post(f"{job}/signal", data={**form, "value": '{"by": "ann"}'})
        assert "The signal is sent." in (await browser.get(done.headers["location"])).text
        assert (await browser.post(f"{job}/signal", data={**form, "once": "2"})).status_code == 303
        assert await handle.value(timeout=60) == [{"by": "ann"}, None]
        late = await browser.post(f"{job}/signal", data={**form, "once": "3"})
        assert (late.status_code, "completed" in late.text) == (404, True)
        assert "Send a signal" not in (await browser.get(job)).text
        assert (await browser.post(f"{job}/signal", data={**form, "form_token": ""})).status_code == 403
        assert (await browser.get("/queues/garage/jobs/4711/signal")).status_code == 404
    audit = [(one.action, one.target, bool(one.error)) for _, one in await observe.audit_entries(jet)]
    sent = ("jobs send", f"garage {handle.id} approved", False)
    assert audit == [(*sent[:2], True), sent, sent, sent]
    async with client() as browser:
        assert (await browser.get(f"{job}/signal")).status_code == 404


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
        assert (await browser.post("/queues/garage/pause", content=b"x" * 100_000)).status_code == 413
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
        assert (await browser.get("/static/live.js")).status_code == 200
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


_LOOK, _ACT, _ADMINISTER = "a-token-to-look-with", "a-token-to-act-with", "a-token-to-administer"


def _tokens() -> list[AccessToken]:
    return [
        AccessToken("lea", "look", _LOOK),
        AccessToken(HOSTILE, "act", _ACT),
        AccessToken("ada", "administer", _ADMINISTER),
    ]


async def test_roles_say_who_may_do_what(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    allowed = {_LOOK: (404, 404), _ACT: (200, 403), _ADMINISTER: (200, 200)}
    for secret, (pausing, purging) in allowed.items():
        async with client(tokens=_tokens()) as browser:
            browser.headers["authorization"] = f"Bearer {secret}"
            assert (await browser.get("/queues/garage/pause")).status_code == pausing
            assert (await browser.get("/queues/garage/purge")).status_code == purging
            assert (await browser.get(f"/queues/garage/discard?id={ids[1]}")).status_code == purging
            for page, refused in (
                ("/queues/garage", "purge"),
                ("/queues/garage", "limits"),
                ("/dead?queue=garage", "discard"),
            ):
                assert (f"garage/{refused}" in (await browser.get(page)).text) is (purging == 200)
            assert ("purge-stream" in (await browser.get("/streams/orders")).text) is (purging == 200)
            assert (await browser.post("/queues/garage/purge", data={})).status_code == (
                404 if secret == _LOOK else 403
            )
            assert (await browser.get("/streams/orders/publish")).status_code == pausing


async def test_what_was_done_is_told_with_the_name_of_the_token(
    client: Client, ids: list[str], jet: pelton.Jet
) -> None:
    async with client(tokens=_tokens()) as browser:
        assert "Nothing yet" not in (await browser.get("/audit")).text
        browser.headers["authorization"] = f"Bearer {_ACT}"
        assert "Nothing yet" in (await browser.get("/audit")).text
        form = {"form_token": form_token((await browser.get("/queues/garage/pause")).text)}
        assert (await browser.post("/queues/garage/pause", data=form)).status_code == 303
        assert (await browser.post("/queues/garage/cancel", data={**form, "id": "none"})).status_code == 404
        page = (await browser.get("/audit")).text
        assert HOSTILE not in page
        assert "garage none" in page
        assert "failed:" in page
    (_, failed), (_, paused) = await observe.audit_entries(jet)
    assert (paused.who, paused.source, paused.action, paused.target) == (HOSTILE, "page", "queue pause", "garage")
    assert (failed.action, failed.target) == ("jobs cancel", "garage none")
    assert "see 'pelton jobs ls'" in failed.error


def test_the_audit_calls_what_the_page_does_as_the_command_line() -> None:
    operations = {**QUEUE_OPERATIONS, **STREAM_OPERATIONS}.values()
    for command in (*OTHER_COMMANDS.values(), *(one.command for one in operations)):
        group, *verbs = command.split()
        known = verbs_of(verbs_of(parser(group))[0].choices[group])
        assert all(verb in known[0].choices for verb in verbs), command


async def test_a_login_leads_on_and_ends(client: Client, ids: list[str]) -> None:
    async with client(tokens=_tokens()) as browser:
        sent = await browser.get("/jobs?queue=garage", headers={"accept": "text/html"})
        assert sent.headers["location"] == "/login?next=%2Fjobs%3Fqueue%3Dgarage"
        assert 'value="/jobs?queue=garage"' in (await browser.get(sent.headers["location"])).text
        for page, where in (("/jobs?queue=garage",) * 2, ("//evil.example", "/"), ("https://evil.example", "/")):
            given = await browser.post("/login", data={"token": _LOOK, "next": page})
            assert given.headers["location"] == where
        assert "lea (look)" in (await browser.get("/")).text
        assert (await browser.post("/logout")).status_code == 303
        assert (await browser.get("/")).status_code == 401


async def test_an_address_that_guesses_has_to_wait(client: Client, ids: list[str]) -> None:
    async with client(tokens=_tokens()) as browser:
        for _ in range(10):
            assert (await browser.post("/login", data={"token": "wrong"})).status_code == 403
        assert (await browser.post("/login", data={"token": _LOOK})).status_code == 429
        assert (await browser.get("/", headers={"authorization": f"Bearer {_LOOK}"})).status_code == 429


def test_after_a_minute_a_guess_is_forgiven() -> None:
    throttle = LoginThrottle()
    for second in range(10):
        assert not throttle.is_full("a", second)
        throttle.note_wrong("a", second)
    assert throttle.is_full("a", 60.0)
    assert not throttle.is_full("b", 60.0)
    assert not throttle.is_full("a", 69.0)
    throttle.note_wrong("a", 69.0)
    assert not throttle.is_full("a", 69.0)


async def test_only_its_own_names_are_answered_to(client: Client, ids: list[str]) -> None:
    async with client(hosts=["testserver"]) as browser:
        assert (await browser.get("/")).status_code == 200
        assert (await browser.get("/", headers={"host": "evil.example:80"})).status_code == 421


@pytest.mark.parametrize(
    ("host", "known"),
    [("localhost:80", True), ("LOCALHOST", True), ("[::1]:80", True), ("[::1]", True), ("x:80", False), ("", False)],
)
def test_names_of_hosts(host: str, known: bool) -> None:
    door = DashboardDoor(b"secret", tokens=[], actions=False, hosts=frozenset({"localhost", "[::1]"}))
    assert door.knows_host(host) is known
