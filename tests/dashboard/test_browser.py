"""The dashboard in Chromium, where it and playwright are installed: live, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    return path


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


def test_hostile_contents_are_texts(page: Any, url: str) -> None:
    for path in ("/queues/garage", "/queues/garage/jobs/1", "/streams/orders", "/streams/orders/messages/1"):
        page.goto(url + path)
        assert "<script>alert('x')</script>" in page.text_content("main")


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
    page.wait_for_url("**/redrive-all")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/garage?done=redrive-all")
    assert "in the queue again" in page.text_content(".done")
    playwright.expect(page.locator('[data-live="queue.garage.dead_letters"]').first).to_have_text("0")


def test_it_fits_a_phone_and_is_dark_where_the_system_is(browser: Any, url: str) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        with browser.new_context(viewport={"width": 360, "height": 700}, color_scheme=scheme) as context:
            page = context.new_page()
            for path in ("/", "/queues/garage", "/streams/orders", "/jobs", "/consumers", "/buckets"):
                page.goto(url + path)
                assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
