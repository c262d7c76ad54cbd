"""The commands on a terminal of 80 columns and 24 lines: no word and no number is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

import pelton
from tests.cli.terminal import Terminal
from tests.kit.served import ServedStore

LONG = "a-name-of-sixty-characters-that-somebody-has-given-to-a-queue"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "a.pelton"
    with pelton.sync.open(path) as jet:
        for number in range(30):
            queue = jet.queue(f"queue-{number}")
            queue.enqueue("repair_something_that_has_a_long_name", key=LONG)
        big = jet.queue(LONG)
        for n in range(1_234):
            big.enqueue("repair_something_that_has_a_long_name", n=n)
        big.limit(job="repair", concurrency=3)
        stream = jet.create_stream(LONG, subjects=["orders.>"])
        stream.create_consumer(durable_name=LONG)
        jet.publish_batch([(f"orders.{n}", b"x") for n in range(2_345)])
        jet.create_bucket("settings").put(LONG, b"1")
    return path


LISTS = ["queue ls", "stream ls", "consumer ls", f"jobs ls S {LONG}", "limits ls", "workers", "locks", "kv ls"]


@pytest.mark.parametrize("line", LISTS)
def test_a_table_fits_and_breaks_nothing(store: Path, line: str) -> None:
    words = line.split()
    words = [str(store) if word == "S" else word for word in words] if "S" in words else [*words, str(store)]
    status, shown = Terminal(*words).end()
    assert status == 0
    assert max(map(len, shown)) <= 80
    # The same as on a wide one, but for columns that are left out, and texts that are cropped.
    _, wide = Terminal(*words, columns=400).end()
    assert len(shown) == len(wide)
    for narrow, whole in zip(shown, wide, strict=True):
        known = {_without_age(word) for word in whole.split()}
        for word in narrow.split():
            assert _without_age(word) in known or word.endswith("…"), (word, whole)


def _without_age(word: str) -> str:
    # How long ago something was may have changed between the two.
    return "" if word.isdecimal() else word


def test_wide_and_sort(store: Path) -> None:
    status, shown = Terminal("queue", "ls", store, "--wide", "--sort", "pending").end()
    assert status == 0
    assert LONG in shown[1]
    assert "1,234" in shown[1]
    assert "completed" in shown[0]
    assert LONG in Terminal("queue", "ls", store, "--wide", "--sort=-pending").end()[1][-1]
    status, shown = Terminal("queue", "ls", store, "--sort", "colour").end()
    assert status == 1
    assert "no such column: queue, pending" in shown[0]


def test_top_fits_the_height_and_has_keys(store: Path) -> None:
    with Terminal("top", store, "--every", "50ms", lines=30) as top:
        shown = top.wait_for("q: end").split("\n")
        assert len(shown) == 30
        assert str(store)[:30] in shown[0]
        assert "free on the disk" in shown[1]
        assert [line.split()[0] for line in shown if "pending" in line or "messages" in line] == [
            "queue", "consumer", "stream",
        ]  # fmt: skip
        assert not [line for line in shown if line.startswith("JOBS_")]
        top.press("p")
        top.wait_for("paused")
        top.press("s")
        top.wait_for("by queue")
        assert "queue-0 " in top.wait_for("q: end")
        top.press("p")
        top.press("a")
        assert "JOBS_queue-" in top.wait_for("JOBS_queue-")
        top.press("q")
        status, rest = top.end()
        assert status == 0
        assert "Traceback" not in "".join(rest)


def test_top_on_a_small_terminal(store: Path) -> None:
    status, shown = Terminal("top", store, "--count", 1, columns=40, lines=12).end()
    assert status == 0
    assert len(shown) == 12
    assert max(map(len, shown)) <= 40


def test_what_queues_and_locks_work_by_is_shown_when_asked_for(store: Path) -> None:
    assert not [line for line in Terminal("consumer", "ls", store).end()[1] if line.startswith("JOBS_")]
    assert [line for line in Terminal("consumer", "ls", store, "--all").end()[1] if line.startswith("JOBS_")]


def test_top_says_that_its_server_is_gone_and_goes_on(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "a.pelton") as jet:
        jet.queue("garage")
    server = ServedStore(tmp_path / "a.pelton")
    server.start()
    try:
        with Terminal("top", server.url, "--every", "50ms", columns=120) as top:
            top.wait_for("q: end")
            server.kill()
            top.wait_for("can be reached")
            assert "garage" in top.wait_for("q: end")
            top.press("q")
            assert top.end()[0] == 0
    finally:
        server.stop()
