"""The numbers in the report and the picture."""

from __future__ import annotations

import pytest

from examples.flights.flights import Plane
from examples.flights.picture import done_by, handovers, heat, ribbons, spread_of, spreaders, timeline
from examples.flights.record import Run

from .simulated import MS, START, Simulation, flight


@pytest.fixture
def run() -> Run:
    flights = [
        flight(k, f"N{k % 6}", sched=22_617_000 + k * 45, dep_delay=20 * (k % 3), arr_delay=20 * (k % 3))
        for k in range(600)
    ]
    return Simulation(flights, START + 40 * MS).run()


def test_spread_is_the_same_from_all_sides(run: Run) -> None:
    total = spread_of(run)
    assert total > 0
    assert sum(cell.minutes for cell in heat(run.flights).values()) == total
    assert sum(map(sum, ribbons(run.flights, list(run.states)).values())) == total


def test_heat_counts_every_flight_in_its_hour() -> None:
    assert heat([flight(0, sched=22_617_300), flight(1, None), flight(2, sched=22_617_301)]) == {(1, 6): (0, 2)}


def test_ribbons_of_nothing() -> None:
    assert ribbons([], ["N1"]) == {"N1": []}


def test_the_worst_come_first_with_what_is_known_of_them(run: Run) -> None:
    worst = spreaders(run, {"N1": Plane("Airbus", "A320", 1999)}, {"UA": "United"}, count=6)
    assert [s.state.spread for s in worst] == sorted((s.spread for s in run.states.values()), reverse=True)
    known = {s.tailnum: (s.carrier, s.model) for s in worst}
    assert known["N1"] == ("United", "Airbus A320 (1999)")
    assert known["N2"] == ("United", "not in the register")
    assert len(spreaders(run, {}, {}, count=2)) == 2


def test_the_timeline_holds_every_flight(run: Run) -> None:
    times = timeline(run)
    for number, done in done_by(run).items():
        assert sum(times.rates[number]) * times.bin_s == pytest.approx(done)
    assert sum(done_by(run).values()) == 600


def test_handovers_go_from_the_dead_to_the_living(run: Run) -> None:
    pairs = handovers(run, run.killed[0])
    assert pairs
    for before, after in pairs:
        assert before.worker == 2 != after.worker
        assert (before.aircraft, before.flight, before.done) == (after.aircraft, after.flight, False)
    assert handovers(run, run.workers[0]) == []
