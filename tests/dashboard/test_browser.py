"""The dashboard in Chromium, where it and playwright are installed: live, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import pelton
from tests.dashboard.conftest import HOSTILE

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish("orders.<b>x</b>", HOSTILE.encode(), headers={"X-Evil": HOSTILE})
        garage = jet.queue("garage")

        @garage.job(max_attempts=1)
        def repair(car: str) -> None:
            raise ValueError(HOSTILE)

        repair.enqueue(HOSTILE, key=HOSTILE)
        garage.work(until_empty=True, handle_signals=False)
        orders = jet.stream("orders")
        orders.create_consumer(durable_name="packer")
        flow = garage.new_flow(HOSTILE)
        flow.add(repair, flow.options(delay=3600).add(repair, HOSTILE).result)
        (path.parent / "flow").write_text(flow.enqueue().id)
        garage.schedule("nightly", repair, args=(HOSTILE,), cron="0 3 * * *")
        garage.limit(job=HOSTILE, per_key=True, concurrency=2)
        jet.create_bucket("settings").put("colour", HOSTILE.encode())
        jet.create_objects("files")
        repair.enqueue(HOSTILE)
    return path


@pytest.fixture
def paths(shop: Path) -> list[str]:
    """Every page."""
    flow = (shop.parent / "flow").read_text()
    return [
        "/", "/queues", "/streams", "/workers",
        "/queues/garage", "/queues/garage/jobs/1", "/queues/garage/jobs/2", f"/queues/garage/flows/{flow}",
        "/queues/garage/pause", f"/queues/garage/cancel-flow?id={flow}", "/jobs", f"/jobs?q={quote(HOSTILE)}", "/flows",
        "/schedules", "/limits", "/streams/orders", "/streams/orders/messages/1", "/streams/orders/publish",
        f"/queues/garage/jobs/1/signal?signal={quote(HOSTILE)}",
        "/queues/garage/keys", f"/queues/garage/keys?key={quote(HOSTILE)}", "/streams/KV_settings", "/consumers",
        "/buckets", "/locks", "/elections",
    ]  # fmt: skip


@pytest.fixture
def url(shop: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "pelton", "dashboard", str(shop), "--port", "0", "--allow-actions"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as running:
        assert running.stdout is not None
        yield running.stdout.readline().split()[-1].rstrip("/")
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0


@pytest.fixture
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """A page that may ask nobody else, run no script of the store's, and say nothing on the console."""
    found = browser.new_page()
    faults: list[str] = []
    found.on("request", lambda request: request.url.startswith(url) or faults.append(request.url))
    found.on("console", lambda message: faults.append(message.text))
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    yield found
    assert faults == []


def test_it_is_live(page: Any, url: str, shop: Path) -> None:
    page.goto(url)
    playwright.expect(page.locator("#state")).to_have_text("Live")
    messages = page.locator('[data-live="stream.orders.messages"]')
    playwright.expect(messages).to_have_text("1")
    with pelton.sync.open(shop) as jet:
        jet.publish("orders.2", b"2")
    playwright.expect(messages).to_have_text("2")


def test_nothing_holds_up_the_first_paint(page: Any, url: str) -> None:
    """The style comes with the page, and the browser keeps the script."""
    for fetched in (True, False):
        page.goto(url, wait_until="load")
        found = page.evaluate("performance.getEntriesByType('resource').map((one) => one.toJSON())")
        assert [one["name"] for one in found if one["renderBlockingStatus"] == "blocking"] == []
        (script,) = [one for one in found if one["initiatorType"] == "script"]
        assert (script["transferSize"] > 0) == fetched
    assert page.evaluate("getComputedStyle(document.querySelector('header')).display") == "flex"


def test_hostile_contents_are_texts(page: Any, url: str, paths: list[str]) -> None:
    seen = 0
    for path in paths:
        assert page.goto(url + path).status == 200, path
        assert page.locator("main script, main img").count() == 0, path
        seen += "<script>alert('x')</script>" in page.text_content("main")
    assert seen >= 10


def test_what_is_waited_for_is_found_by_its_argument(page: Any, url: str) -> None:
    page.goto(f"{url}/jobs")
    page.fill("input[name=q]", "alert('x')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?q=*")
    assert "repair" in page.text_content("tbody")
    page.click("tbody tr:nth-child(2) a")
    assert "Arguments" in page.text_content("main")


def test_the_lag_of_a_consumer_is_a_line(page: Any, url: str, shop: Path) -> None:
    page.goto(f"{url}/consumers")
    points = page.locator('polyline[data-live="consumer.orders.packer.lag_line"]')
    assert len(points.get_attribute("points").split()) == 1
    with pelton.sync.open(shop) as jet:
        for _ in range(5):
            jet.publish("orders.2", b"2")
    playwright.expect(page.locator('[data-live="consumer.orders.packer.lag"]').first).to_have_text("6")
    # A point is added every ten seconds.
    playwright.expect(points).to_have_attribute("points", re.compile(r"\S+ \S+"), timeout=20_000)


def test_workers_come_and_go_while_somebody_watches(page: Any, url: str, shop: Path) -> None:
    page.goto(f"{url}/queues/garage")
    rows = page.locator('tbody[data-live="queue.garage.workers"] tr')
    # The one that has made the dead letter has left.
    playwright.expect(rows).to_have_count(1)
    assert "gone" in rows.first.text_content()
    program = "import pelton, sys\nwith pelton.sync.open(sys.argv[1]) as jet:\n    jet.queue('garage').work()"
    with subprocess.Popen([sys.executable, "-c", program, str(shop)]) as worker:
        try:
            playwright.expect(rows.filter(has_text=f", {worker.pid}")).to_have_count(1, timeout=20_000)
        finally:
            worker.terminate()
    playwright.expect(rows.filter(has_text="gone")).to_have_count(1, timeout=20_000)
    playwright.expect(rows).to_have_count(1)


def test_a_schedule_is_paused_a_flow_is_cancelled_and_a_message_is_published(page: Any, url: str, shop: Path) -> None:
    page.goto(f"{url}/schedules")
    page.click("text=Pause")
    page.click("text=Yes, pause schedule")
    playwright.expect(page.locator(".done")).to_have_text("The schedule is paused.")
    page.goto(f"{url}/flows")
    page.click("tbody a")
    page.click("text=Cancel")
    page.click("text=Yes, cancel flow")
    playwright.expect(page.locator(".done")).to_have_text("The flow is cancelled.")
    page.goto(f"{url}/streams/orders")
    page.click("text=Publish")
    page.fill("input[name=subject]", "orders.3")
    page.fill("textarea[name=data]", HOSTILE)
    page.click("text=Yes, publish")
    playwright.expect(page.locator(".done")).to_have_text("The message is stored.")
    with pelton.sync.open(shop) as jet:
        assert jet.stream("orders").get_last_message("orders.3").data.decode() == HOSTILE


def test_a_person_sends_what_a_job_waits_for(page: Any, url: str, shop: Path) -> None:
    with pelton.sync.open(shop) as jet:
        garage = jet.queue("garage")

        @garage.job
        def approve(context: pelton.sync.JobContext) -> object:
            return context.wait_for("approved")

        handle = approve.enqueue()
        garage.work(until_idle=True, handle_signals=False)
        page.goto(f"{url}/queues/garage/jobs/{handle.id}")
        page.click("text=Send a signal")
        assert page.input_value("input[name=signal]") == "approved"
        page.keyboard.type('{"by": ')
        page.click("text=Yes, send")
        assert "not JSON" in page.text_content("[role=alert]")
        page.fill("textarea[name=value]", '{"by": "ann"}')
        page.click("text=Yes, send")
        playwright.expect(page.locator(".done")).to_have_text("The signal is sent.")
        garage.work(until_idle=True, handle_signals=False)
        assert handle.value(timeout=30) == {"by": "ann"}


def test_it_is_read_without_javascript(browser: Any, url: str, paths: list[str]) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        for path in paths:
            page.goto(url + path)
            assert page.locator("h1").count() == 1, path


def test_a_job_is_redriven_by_keyboard_alone(page: Any, url: str) -> None:
    page.goto(f"{url}/queues/garage")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Redrive all":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/redrive?all=1")
    assert page.evaluate("document.activeElement.textContent") == "No, go back"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/garage?done=redrive*")
    assert "in the queue again" in page.text_content(".done")
    playwright.expect(page.locator('[data-live="queue.garage.dead_letters"]').first).to_have_text("0")


def test_it_fits_a_phone_and_is_dark_where_the_system_is(browser: Any, url: str, paths: list[str]) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        with browser.new_context(viewport={"width": 360, "height": 700}, color_scheme=scheme) as context:
            page = context.new_page()
            for path in paths:
                page.goto(url + path)
                assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
