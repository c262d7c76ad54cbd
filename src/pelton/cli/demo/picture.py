"""The run as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pelton.cli.demo.charts import handover_chart, heat_map, ribbon_chart, throughput
from pelton.cli.demo.checks import PromiseCheck, passed
from pelton.cli.demo.figures import Spreader, done_by, handovers, heat, ribbons, spread_of, timeline
from pelton.cli.demo.record import Run
from pelton.drawing.page import head, page, section, tiles
from pelton.drawing.svg import tag


def write_picture(path: Path, run: Run, verdicts: Sequence[PromiseCheck], worst: Sequence[Spreader]) -> None:
    """Write the page to `path`; raises `OSError` if that fails."""
    path.write_text(draw(run, verdicts, worst), encoding="utf-8")


def draw(run: Run, verdicts: Sequence[PromiseCheck], worst: Sequence[Spreader]) -> str:
    """Return the page as text."""
    body = "".join((_head(run), _tiles(run), _engine_charts(run), _delay_charts(run, worst), _promises(verdicts)))
    return page("Pelton: a year of flights", body)


def _head(run: Run) -> str:
    first_kill = run.killed[0].killed_ns or 0 if run.killed else run.ended_ns
    workers = sum(worker.started_ns <= first_kill for worker in run.workers)
    killed = f" {len(run.killed)} died by SIGKILL on the way, and the others took over." if run.killed else ""
    return head(
        "How a late aircraft makes the next flight late",
        f"{len(run.flights):,} flights that left New York in 2013, each a job on one file, keyed by its "
        "aircraft. A job carries the aircraft's delay on to the next, so order matters. "
        f"{workers} processes shared the work.{killed}",
    )


def _tiles(run: Run) -> str:
    done = sum(done_by(run).values())
    figures = (
        (f"{done:,}", "flights done"),
        (f"{done / run.seconds:,.0f}", "a second"),
        (f"{run.seconds:,.1f} s", "from first to last"),
        (f"{len(run.states):,}", "aircraft"),
        (f"{spread_of(run):,}", "minutes of delay handed on"),
        (f"{len(run.dead):,}", "dead letters"),
    )
    return tiles(figures)


def _engine_charts(run: Run) -> str:
    chart = section("The work, and the kill", "Flights done per second, by worker.", throughput(timeline(run), run))
    for worker in run.killed:
        chart += section(
            f"What worker {worker.number} was working on",
            "The aircraft it left behind: its own last attempt, outlined where death cut it short, and the "
            "attempt of the worker that took the aircraft over. Colours are the workers' above.",
            handover_chart(handovers(run, worker), run, worker),
        )
    return chart


def _delay_charts(run: Run, worst: Sequence[Spreader]) -> str:
    heading = "When delay is handed on"
    words = "Minutes that a flight inherited from its aircraft's last one, by month and hour of departure."
    chart = section(heading, words, heat_map(heat(run.flights)))
    if run.flights:
        days = ribbons(run.flights, [spreader.tailnum for spreader in worst])
        chart += section(
            "The aircraft that spread most",
            "As wide as the delay that they were handing on.",
            ribbon_chart(worst, days, run.flights[0].day),
        )
    return chart


def _promises(verdicts: Sequence[PromiseCheck]) -> str:
    rows = (
        tag(
            "li",
            tag("b", "PASS" if kept else "FAIL", class_="yes" if kept else "no"),
            tag("div", escape(promise)),
            tag("span", escape(detail)),
        )
        for promise, kept, detail in verdicts
    )
    words = "Every promise was kept." if passed(verdicts) else "A promise was broken."
    return section("Promises", words, tag("ul", *rows))
