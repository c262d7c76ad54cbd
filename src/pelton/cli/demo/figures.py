"""The numbers behind the report and the picture, each counted once from the record of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pelton.cli.demo.checks import by_aircraft
from pelton.cli.demo.flights import Flight, Plane
from pelton.cli.demo.propagation import PlaneState, replay
from pelton.cli.demo.record import FlightAttempt, Run, WorkerRecord

_DAY_MIN = 24 * 60


class Spreader(NamedTuple):
    """One aircraft that passed delay on, with what the register and the airline's name add."""

    tailnum: str
    carrier: str
    model: str
    state: PlaneState


class Cell(NamedTuple):
    """The minutes that the flights of one month and hour inherited, and how many flew."""

    minutes: int
    flights: int


class Handover(NamedTuple):
    """One aircraft around a kill: the dead worker's last attempt, and the one that took over."""

    before: FlightAttempt
    after: FlightAttempt


@dataclass(frozen=True)
class Timeline:
    """Flights done per second, by worker number, in bins of `bin_s` seconds from the start of the run."""

    bin_s: float
    rates: Mapping[int, Sequence[float]]


def spread_of(run: Run) -> int:
    """Return the minutes of delay that flights inherited, over all aircraft."""
    return sum(state.spread for state in run.states.values())


def done_by(run: Run) -> dict[int, int]:
    """Return the flights done, by worker number; 0 for a worker that did none."""
    counts = {worker.number: 0 for worker in run.workers}
    for attempt in run.attempts:
        if attempt.done:
            counts[attempt.worker] = counts.get(attempt.worker, 0) + 1
    return counts


def spreaders(run: Run, planes: Mapping[str, Plane], carriers: Mapping[str, str], count: int = 10) -> list[Spreader]:
    """Return the aircraft that spread most delay, the worst first; ties are ordered by tail number."""
    worst = sorted(run.states.items(), key=lambda item: (-item[1].spread, item[0]))[:count]
    flew = _last_carrier(run.flights)
    return [Spreader(t, _carrier(flew.get(t, ""), carriers), _model(planes.get(t)), state) for t, state in worst]


def timeline(run: Run, most_bins: int = 120) -> Timeline:
    """Return the throughput over the run, from the attempts that count; a short run has fewer bins."""
    bins = max(12, min(most_bins, len(run.attempts) // 60))
    width = max(1, -(-(run.ended_ns - run.started_ns) // bins))
    counts = {worker.number: [0.0] * bins for worker in run.workers}
    for attempt in run.attempts:
        if attempt.done and attempt.end_ns is not None and attempt.worker in counts:
            at = (attempt.end_ns - run.started_ns) // width
            counts[attempt.worker][min(bins - 1, max(0, at))] += 1e9 / width
    return Timeline(width / 1e9, counts)


def heat(flights: Iterable[Flight]) -> dict[tuple[int, int], Cell]:
    """Return the delay inherited by month (1 to 12) and scheduled hour of departure (0 to 23)."""
    cells: dict[tuple[int, int], Cell] = defaultdict(lambda: Cell(0, 0))
    for flight, state in replay(flights):
        key = (flight.day.month, flight.hour)
        minutes, flown = cells[key]
        cells[key] = Cell(minutes + state.last_spread, flown + 1)
    return dict(cells)


def ribbons(flights: Sequence[Flight], tails: Sequence[str]) -> dict[str, list[int]]:
    """Return the minutes inherited on each day, from the first flight's to the last one's, for each aircraft named."""
    if not flights:
        return {tail: [] for tail in tails}
    first, last = flights[0].local // _DAY_MIN, max(f.local for f in flights) // _DAY_MIN
    days = {tail: [0] * (last - first + 1) for tail in tails}
    for flight, state in replay(f for f in flights if f.tailnum in days):
        days[flight.aircraft()][flight.local // _DAY_MIN - first] += state.last_spread
    return days


def handovers(run: Run, worker: WorkerRecord, count: int = 8) -> list[Handover]:
    """Return the aircraft that a killed worker was processing and others took over; failing that, its last."""
    moved = [
        pair for attempts in by_aircraft(run.attempts).values() if (pair := _handover(attempts, worker)) is not None
    ]
    cut = [pair for pair in moved if not pair.before.done]
    return sorted(cut or moved, key=lambda pair: -pair.before.start_ns)[:count]


def _handover(attempts: Sequence[FlightAttempt], worker: WorkerRecord) -> Handover | None:
    death = worker.killed_ns or 0
    for before, after in pairwise(attempts):
        if before.start_ns <= death < after.start_ns:
            return Handover(before, after) if before.worker == worker.number != after.worker else None
    return None


def _last_carrier(flights: Iterable[Flight]) -> dict[str, str]:
    return {flight.tailnum: flight.carrier for flight in flights if flight.tailnum is not None}


def _carrier(code: str, names: Mapping[str, str]) -> str:
    return names.get(code, code)


def _model(plane: Plane | None) -> str:
    if plane is None:
        return "not in the register"
    year = f" ({plane.year})" if plane.year else ""
    return f"{plane.manufacturer} {plane.model}{year}"
