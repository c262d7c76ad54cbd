"""The demo's Spark part: the same sums as without Spark, on a store that the demo left."""

import asyncio
import io
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import pelton
from examples.flights.__main__ import is_ours
from examples.flights.flights import Flight, read_carriers, read_flights
from examples.flights.lake import show_lake
from examples.flights.work import PLANES, Landed, open_queue, replay


async def _finished(store: Path, flights: list[Flight]) -> None:
    async with pelton.open(store) as jet:
        await jet.create_stream(PLANES, subjects=[f"{PLANES}.>"])
        queue = await open_queue(jet)

        @queue.job
        async def fly(index: int) -> None:
            pass

        await fly.enqueue_many([(n,) for n in range(5)])
        await queue.work(until_empty=True, handle_signals=False)
        for flight, state in replay(flights):
            landed = Landed(state, flight.index, 1, 0, 1)
            await jet.publish(f"{PLANES}.{flight.aircraft()}", msgspec.msgpack.encode(landed))


def test_what_spark_finds_is_what_the_flights_say(spark: SparkSession, tmp_path: Path) -> None:
    flights = read_flights(600)
    asyncio.run(_finished(tmp_path / "flights.pelton", flights))
    said = io.StringIO()
    show_lake(Console(file=said, width=140), tmp_path / "flights.pelton", flights, read_carriers())
    minutes: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for flight, state in replay(flights):
        for what in (flight.carrier, flight.origin, flight.aircraft()):
            minutes[what] += state.last_spread
            count[what] += 1
    lines = [line.replace("│", " ").split() for line in said.getvalue().splitlines()]
    found = {line[0]: line[1:] for line in lines if line}
    for what in ("EWR", "JFK", "LGA", minutes.most_common(1)[0][0]):
        if what in found:
            assert found[what] == [f"{count[what]:,}", f"{minutes[what]:,}", f"{minutes[what] / count[what]:.2f}"]
    assert {"EWR", "JFK", "LGA"} <= set(found)
    assert any(line[-5:-3] == ["Airways", "(B6)"] for line in lines)
    assert "<b>5</b><span>jobs ended" in (tmp_path / "jobs.html").read_text()
    assert (tmp_path / "flights.lake").is_dir()
    assert [each.name for each in tmp_path.iterdir() if not is_ours(each)] == []


def test_without_java_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = io.StringIO()
    show_lake(Console(file=said, width=500), tmp_path / "flights.pelton", [], {})
    assert said.getvalue().count("\n") == 1
    assert "needs Java 17 or newer" in said.getvalue()
