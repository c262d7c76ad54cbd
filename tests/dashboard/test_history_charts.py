"""Charts of the last hour and day: drawn on the server, from what the store keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pelton
from pelton import observe
from pelton.api import MinuteNote, StreamInfoRequest
from pelton.dashboard.history_charts import SPANS, lag_charts, moments_of, queue_charts, stored_rates, stream_chart
from pelton.jet.backlogs import MINUTE, BacklogPoint, StreamTrend, note_backlogs
from pelton.queue.model.naming import QueueNames
from pelton.queue.scan import TrendPoint, note_trend
from pelton.testing import manual_runtime
from tests.dashboard.conftest import Client

NOW = 30_000_000 * MINUTE + 5


def point(ago: int, ended: int, depth: int = 7, run: float = 0.5) -> TrendPoint:
    return TrendPoint(NOW // MINUTE - ago, ended, 0, depth, 2.0, 3.0, run, run * 2)


def titles(svg: str) -> list[str]:
    return re.findall("<title>[^<]*: ([^<]*)</title>", svg)


def test_the_charts_of_a_queue_are_differences_of_its_counters() -> None:
    points = [point(5, 100), point(4, 160), point(3, 27_460), point(1, 27_470, depth=1_640_000)]
    ended, depth, wait, run = queue_charts(points, SPANS["hour"], NOW)
    assert titles(ended.svg) == ["60 per minute", "27 k per minute", "5 per minute"]
    assert titles(depth.svg)[-2:] == ["7 jobs", "1.6 M jobs"]
    assert (wait.last, run.last, depth.last) == ("2 s", "500 ms", "1.6 M")
    assert titles(run.svg) == ["500 ms median"] * 4 + ["1 s 95 %"] * 4
    for chart in (ended, depth, wait, run):
        assert "style=" not in chart.svg, "the policy of the page refuses it"
        assert chart.svg.count("<path") >= 1


def test_what_nobody_has_noted_is_a_gap() -> None:
    ended, depth, _, run = queue_charts([point(40, 100), point(39, 110), point(9, 90_000), point(8, 90_030)],
                                        SPANS["hour"], NOW)  # fmt: skip
    assert titles(ended.svg) == ["10 per minute", "30 per minute"]
    # An area and a line for each part.
    assert depth.svg.count("<path") == 4
    assert queue_charts([], SPANS["hour"], NOW) == []
    (ended, *_) = queue_charts([point(1, 5)], SPANS["hour"], NOW)
    assert (ended.last, titles(ended.svg)) == ("-", [])
    assert run.svg.count("<path") == 6


def test_the_day_has_a_point_for_ten_minutes() -> None:
    points = [point(ago, 30 * (1440 - ago), depth=ago) for ago in range(1440, 0, -1)]
    ended, depth, _, _ = queue_charts(points, SPANS["day"], NOW)
    assert 143 <= len(titles(ended.svg)) <= 145
    assert {"30 per minute"} == set(titles(ended.svg))
    assert len(depth.svg) < 60_000


async def test_a_stream_is_charted_from_the_times_of_its_messages(tmp_path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(tmp_path / "a.pelton", runtime=runtime) as jet:
        await jet.create_stream("orders", subjects=["orders"])
        runtime.clock.advance(61)
        for count in (6, 0, 12):
            for _ in range(count):
                await jet.publish("orders", b"x")
            runtime.clock.advance(60)
        span, now = SPANS["hour"], runtime.clock.now()
        info = await jet.backend.call(StreamInfoRequest(name="orders"))
        rates = await observe.stream_rates(jet, info, moments_of(span, now))
        assert [rate for _, rate in rates if rate] == [0.1, 0.2]
        assert titles(stream_chart(rates, span, now).svg)[-1] == "0.2 per second"
        # Nobody knows when messages came that were removed.
        await (await jet.stream("orders")).purge(keep=12)
        info = await jet.backend.call(StreamInfoRequest(name="orders"))
        assert len(await observe.stream_rates(jet, info, moments_of(span, now))) < 3


def test_the_lag_of_a_stream_is_drawn_for_the_consumers_with_most_to_do() -> None:
    first = NOW // MINUTE - 30
    backlogs = {
        f"c{number:02}": [BacklogPoint(first + minute, number * minute, number) for minute in range(30)]
        for number in range(20)
    }
    evil = [BacklogPoint(first + 29, 1_640_000, 0)]
    trend = StreamTrend({**backlogs, "<b>\u202e": evil, "new": []}, [])
    charts = lag_charts(trend, SPANS["hour"], NOW)
    assert [chart.heading.partition(":")[0] for chart in charts[1:]] == [f"c{number}" for number in range(19, 12, -1)]
    assert (charts[0].last, charts[1].last) == ("1.6 M", "551")
    assert "<b>" not in charts[0].svg
    assert "\u202e" not in charts[0].svg + charts[0].heading
    assert titles(charts[1].svg)[-1] == "19 unsettled"
    day = lag_charts(trend, SPANS["day"], NOW)[1]
    assert 3 <= len(titles(day.svg)) / 2 <= 4
    assert lag_charts(StreamTrend({}, []), SPANS["hour"], NOW) == []
    (calm,) = lag_charts(StreamTrend({"c": [BacklogPoint(first, 0, 0)]}, []), SPANS["hour"], NOW)
    assert re.findall(r'class="tick end"[^>]*>([^<]*)<', calm.svg) == ["1", "0"]


def test_the_rate_of_a_stream_whose_messages_leave_is_the_difference_of_its_sequences() -> None:
    first = NOW // MINUTE - 30
    seqs = [(first, 10), (first + 1, 70), (first + 2, 70), (first + 20, 9000), (first + 21, 9120), (first + 22, 5)]
    rates = stored_rates(StreamTrend({}, seqs), SPANS["hour"])
    assert [(at // MINUTE - 1 - first, rate) for at, rate in rates] == [(1, 1.0), (2, 0.0), (21, 2.0), (22, 0.0)]


async def test_the_pages_have_them(client: Client, jet: pelton.Jet, ids: list[str]) -> None:
    # No look at the queue is used again.
    async with client(every=0.0) as browser:
        page = (await browser.get("/streams/orders?span=day")).text
        assert "<svg viewBox" in page
        is_file = MinuteNote in jet.backend.planning.own_verbs
        assert ("Charts of the lag begin" if is_file else "NATS servers keep no history of the lag") in page
        assert "of the lag" not in (await browser.get("/streams/JOBS_garage")).text
        await note_backlogs(jet)
        page = (await browser.get("/streams/orders")).text
        # The stream was made in the minute that goes on, mostly.
        assert ("packer: pending" in page) <= is_file
        assert "Charts begin when" in (await browser.get("/queues/garage")).text
        await note_trend(jet, QueueNames("garage"))
        for span in ("hour", "day", "nothing"):
            assert (await browser.get(f"/queues/garage?span={span}")).text.count("<svg viewBox") == 4
