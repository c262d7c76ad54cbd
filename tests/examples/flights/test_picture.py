"""The picture: complete, self-contained, escaped, also for short runs."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.flights.checks import PromiseCheck, check
from examples.flights.picture import Spreader, draw, smooth, spreaders, write_picture
from examples.flights.record import Run
from examples.flights.work import FRESH
from pelton.drawing.charts import Scale, tag, text, ticks

from .simulated import MS, START, Simulation, flight


def a_run(days: int, kill: bool = True) -> Run:
    flights = [flight(k, f"N{k % 5}", sched=22_617_300 + k * 60, dep_delay=30, arr_delay=30) for k in range(days * 24)]
    return Simulation(flights, START + 9 * MS if kill else None).run()


def charts(page: str) -> list[str]:
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for chart in drawn:
        ElementTree.fromstring(chart)  # well-formed, or it raises
    return [match[1] for chart in drawn if (match := re.search(r'aria-label="([^"]*)"', chart))]


def test_the_whole_picture(tmp_path: Path) -> None:
    run, path = a_run(60), tmp_path / "picture.html"
    write_picture(path, run, check(run), spreaders(run, {}, {}))
    page = path.read_text(encoding="utf-8")
    assert len(charts(page)) == 4
    assert "SIGKILL: worker 2 (pid 4102)" in page
    assert not re.search(r"(src|href)=|url\(|https?:|@import|<script", page)


def test_a_short_run_has_no_ribbons_and_no_kill_no_handover() -> None:
    run = a_run(3, kill=False)
    assert charts(draw(run, check(run), spreaders(run, {}, {}))) == [
        "Flights done per second by each worker over the run",
        "Delay inherited by month and hour of departure",
    ]


def test_an_empty_run_can_be_drawn() -> None:
    assert len(charts(draw(Run([], {}, [], [], [], 0, 0), [], []))) == 1


def test_what_comes_from_outside_is_escaped() -> None:
    run = a_run(60)
    page = draw(run, [PromiseCheck("<b>", False, "a & b")], [Spreader("N1", "<i>", "</svg>", FRESH)])
    assert "&lt;b&gt;" in page
    assert "a &amp; b" in page
    assert "A promise was broken" in page
    assert len(charts(page)) == 4


def test_elements() -> None:
    assert tag("g", "x", class_="a", stroke_width=1.50, id=None) == '<g class="a" stroke-width="1.5">x</g>'
    assert text(1, 2.0, "<&>") == '<text x="1" y="2">&lt;&amp;&gt;</text>'


def test_scale_and_ticks() -> None:
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(3, 3, 100, 200)(3) == 100
    assert ticks(0, 9_500, 6) == [0, 2_000, 4_000, 6_000, 8_000]
    assert ticks(-0.3, 0.3, 3) == pytest.approx([-0.2, 0, 0.2])
    assert ticks(0, 0) == [0]


def test_smoothing_keeps_the_sum_and_the_place() -> None:
    assert smooth([0, 0, 4, 0, 0], 1) == [0, 1, 2, 1, 0]
    assert smooth([1, 2], 0) == [1, 2]
