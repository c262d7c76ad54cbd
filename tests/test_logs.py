"""What the library logs: each room under its own name, with the same fields everywhere, and nothing in normal work."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import pelton
from tests.docs.pages import ROOT
from tests.places import PLACES, address_of

SOURCE = ROOT / "src" / "pelton"
# Programs of the command line have loggers of their own.
FILES = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "cli"]
_LEVELS = {"debug", "info", "warning", "error", "exception", "log"}


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of methods in a file, with the object and the method."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, ast.unparse(node.func)


def fields(page: str) -> set[str]:
    """Return the fields that a page's table lists."""
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return {name.strip(" `") for row in rows for name in row.split(",")}


def test_each_room_has_its_own_logger() -> None:
    found = {
        (path.relative_to(SOURCE).parts[0].removesuffix(".py"), ast.literal_eval(call.args[0]))
        for path in FILES
        for call, name in calls(path)
        if name == "logging.getLogger"
    }
    assert len(found) > 10
    assert {logger for _, logger in found} == {f"pelton.{room}" for room, _ in found}


def test_fields_are_those_of_the_page_everywhere() -> None:
    listed = fields((ROOT / "docs" / "guides" / "observing" / "logging.md").read_text())
    used: set[str] = set()
    for path in FILES:
        for call, name in calls(path):
            if name.rpartition(".")[0] != "_log" or name.rpartition(".")[2] not in _LEVELS:
                continue
            for keyword in call.keywords:
                if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
                    used |= {ast.literal_eval(key) for key in keyword.value.keys if key is not None}
    assert used <= listed, used - listed
    assert {"store", "stream", "consumer", "queue", "seq"} <= used
    reserved = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    assert not listed & reserved


@pytest.mark.parametrize("place", PLACES)
async def test_normal_work_logs_nothing(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with address_of(place, tmp_path) as address:
        async with pelton.open(address) as jet:
            orders = await jet.create_stream("orders", subjects=["orders.>"])
            consumer = await orders.create_consumer(durable_name="shipping")
            await jet.publish_batch([("orders.1", b"")] * 100)
            for message in await consumer.fetch(100):
                await message.ack()
            queue = await jet.queue("garage")

            @queue.job
            async def repair(car: str) -> str:
                return car

            await queue.enqueue_many([repair.bind(str(number)) for number in range(20)])
            await queue.work(until_empty=True, handle_signals=False)
            bucket = await jet.create_bucket("settings")
            await bucket.put("a", b"1")
            async with jet.lock("one"):
                pass
            async with jet.elect("boss"):
                pass
    assert caplog.records == []


async def test_a_failed_job_has_its_fields_and_no_argument(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        queue = await jet.queue("garage")

        @queue.job(max_attempts=1)
        async def repair(password: str) -> str:
            raise ValueError("no such car")

        handle = await queue.options(key="car 1").enqueue(repair, "a secret")
        await queue.work(until_empty=True, handle_signals=False)
    [record] = caplog.records
    found = vars(record)
    assert record.name == "pelton.queue"
    assert {name: found[name] for name in ("queue", "job", "id", "key", "attempt")} == {
        "queue": "garage",
        "job": "repair",
        "id": handle.id,
        "key": "car 1",
        "attempt": 1,
    }
    assert "secret" not in record.getMessage() + found["traceback"]
