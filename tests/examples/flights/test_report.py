"""The printed report summarizes the run and gives the verdict."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from examples.flights.checks import check
from examples.flights.picture import spreaders
from examples.flights.record import FlightDeadLetter, Run
from examples.flights.screen import print_report, reasons

from .simulated import MS, START, Simulation, flight


def a_run() -> Run:
    flights = [flight(k, None if k == 7 else f"N{k % 5}") for k in range(100)]
    return Simulation(flights, START + 6 * MS).run()


def printed(run: Run) -> tuple[bool, str]:
    out = io.StringIO()
    kept = print_report(Console(file=out, width=140), run, check(run), spreaders(run, {}, {"UA": "United"}))
    return kept, out.getvalue()


def test_a_clean_run_passes() -> None:
    kept, text = printed(a_run())
    assert kept
    for words in (
        "99 flights of 5 aircraft",
        "killed (SIGKILL)",
        "4177",
        "1 x no aircraft",
        "United",
        "PASS: every",
    ):
        assert words in text
    assert "FAIL" not in text


def test_a_broken_run_fails_and_says_why() -> None:
    kept, text = printed(replace(a_run(), left=1))
    assert not kept
    assert "jobs left in the queue: 1" in text
    assert "FAIL: a promise was broken" in text


def test_a_run_of_nothing_is_reported() -> None:
    assert printed(Run([], {}, [], [], [], 0, 0))[0]


def test_reasons_are_counted_most_first() -> None:
    dead = [FlightDeadLetter(1, "b"), FlightDeadLetter(2, "a"), FlightDeadLetter(3, "a")]
    assert list(reasons(Run([], {}, [], dead, [], 0, 1)).items()) == [("a", 2), ("b", 1)]
