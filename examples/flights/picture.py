"""The numbers behind the report and the picture, each counted once from the record of a run, and that picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from examples.flights.checks import PromiseCheck, by_aircraft, passed
from examples.flights.flights import Flight, Plane
from examples.flights.record import FlightAttempt, Run, WorkerRecord
from examples.flights.work import PlaneState, replay
from pelton.drawing.charts import (
    HUES,
    SHADES,
    Point,
    Scale,
    head,
    line,
    page,
    path,
    section,
    tag,
    text,
    ticks,
    tiles,
    title,
)

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


# --- the picture's four charts, each one SVG element made from figures; colours are the page's classes

WIDTH = 1040.0
_RIBBON_DAYS = 21
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def throughput(times: Timeline, run: Run) -> str:
    """Flights per second, the workers stacked, with the moment of each kill."""
    height, top, bottom, left = 300.0, 34.0, 270.0, 56.0
    x = Scale(0.0, run.seconds, left, WIDTH - 10)
    totals = [sum(column) for column in zip(*times.rates.values(), strict=True)]
    y = Scale(0.0, max(totals, default=1.0) * 1.08 or 1.0, bottom, top)
    parts = _rate_axis(y, left) + _second_axis(x, bottom)
    floor = [0.0] * len(totals)
    labels: list[str] = []
    for number, rates in times.rates.items():
        roof = [a + b for a, b in zip(floor, rates, strict=True)]
        parts.append(_band(number, times.bin_s, floor, roof, x, y))
        labels.append(_band_label(number, times.bin_s, floor, roof, x, y))
        floor = roof
    parts += labels + [_kill(worker, run, x, top, bottom) for worker in run.killed]
    return _svg(height, parts, "Flights done per second by each worker over the run")


def heat_map(cells: Mapping[tuple[int, int], Cell]) -> str:
    """Inherited minutes per flight, months down and hours of departure across."""
    hours, months = _hours(cells), sorted({month for month, _ in cells})
    if not hours:
        return ""
    left, top, tall = 56.0, 22.0, 26.0
    wide = (WIDTH - left - 10) / len(hours)
    most = max(_mean(cell) for (_, hour), cell in cells.items() if hour in hours) or 1.0
    parts = [text(left + (k + 0.5) * wide, 14, f"{h:02}", class_="tick mid") for k, h in enumerate(hours)]
    for row, month in enumerate(months):
        at = top + row * tall
        parts.append(text(left - 10, at + tall / 2 + 4, _MONTHS[month - 1], class_="tick end"))
        parts += [
            _square(
                left + k * wide,
                at,
                wide,
                tall,
                cells.get((month, hour)),
                most,
                f"{_MONTHS[month - 1]}, {hour:02}h",
            )
            for k, hour in enumerate(hours)
        ]
    foot = top + len(months) * tall + 14
    return _svg(foot + 32, [*parts, _shades(left, foot, most)], "Delay inherited by month and hour of departure")


def ribbon_chart(worst: Sequence[Spreader], days: Mapping[str, Sequence[int]], first: date) -> str:
    """One ribbon per aircraft, as wide as the delay that it handed on; empty for less than three weeks."""
    span = max((len(values) for values in days.values()), default=0)
    if span < _RIBBON_DAYS or not worst:
        return ""
    left, right, top, tall = 240.0, WIDTH - 84, 20.0, 46.0
    x = Scale(0.0, float(max(1, span - 1)), left, right)
    reach = 4 if span > 120 else 1
    curves = {tail: smooth(smooth([float(v) for v in values], reach), reach) for tail, values in days.items()}
    widest = max(max(curve) for curve in curves.values()) or 1.0
    parts = _month_axis(x, first, span, top - 6, top + len(worst) * tall)
    for row, spreader in enumerate(worst):
        middle = top + (row + 0.5) * tall
        parts += _ribbon(spreader, curves[spreader.tailnum], x, middle, tall * 0.47 / widest)
    return _svg(top + len(worst) * tall + 8, parts, "The delay that ten aircraft spread, over the year")


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """Return each value averaged with its neighbours up to `reach` away, nearer ones weighted more."""
    weights = [reach + 1 - abs(offset) for offset in range(-reach, reach + 1)]
    whole = sum(weights)
    padded = [0.0] * reach + list(values) + [0.0] * reach
    return [sum(weight * padded[at + k] for k, weight in enumerate(weights)) / whole for at in range(len(values))]


def handover_chart(pairs: Sequence[Handover], run: Run, worker: WorkerRecord) -> str:
    """The aircraft of a killed worker: the attempts before and after its death."""
    if not pairs or worker.killed_ns is None:
        return ""
    left, top, tall, death = 120.0, 34.0, 26.0, worker.killed_ns
    after = max((run.end_of(pair.after) or pair.after.start_ns) - death for pair in pairs)
    before = max(death - pair.before.start_ns for pair in pairs)
    x = Scale(-min(before, after) * 1.1 / 1e6, after * 1.05 / 1e6, left, WIDTH - 10)
    bottom = top + len(pairs) * tall
    parts = [_grid_x(x, tick, top, bottom, f"{tick:g} ms") for tick in ticks(x.low, x.high, 8)]
    for row, pair in enumerate(pairs):
        middle = top + (row + 0.5) * tall
        parts.append(text(left - 12, middle + 4, pair.before.aircraft, class_="end"))
        left_at = ((run.end_of(pair.before) or death) - death) / 1e6
        parts.append(
            line(
                (max(left, x(left_at)), middle),
                (x((pair.after.start_ns - death) / 1e6), middle),
                class_="thread",
            )
        )
        parts += [_bar(attempt, run, death, x, middle) for attempt in pair]
    parts.append(line((x(0.0), top - 8), (x(0.0), bottom), class_="kill"))
    parts.append(text(x(0.0) + 6, top - 12, f"worker {worker.number} dies", class_="killed"))
    return _svg(bottom + 26, parts, "Attempts around the moment of the kill")


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)


def _hue(worker: int) -> str:
    return f"w{(worker - 1) % HUES}"


def _rate_axis(y: Scale, left: float) -> list[str]:
    parts: list[str] = []
    for tick in ticks(0, y.high, 6):
        parts.append(line((left, y(tick)), (WIDTH - 10, y(tick)), class_="grid"))
        parts.append(text(left - 8, y(tick) + 4, f"{tick:,.0f}", class_="tick end"))
    return parts


def _second_axis(x: Scale, bottom: float) -> list[str]:
    return [text(x(tick), bottom + 20, f"{tick:g} s", class_="tick mid") for tick in ticks(0, x.high, 10)]


def _grid_x(x: Scale, tick: float, top: float, bottom: float, words: str) -> str:
    return line((x(tick), top), (x(tick), bottom), class_="grid") + text(x(tick), bottom + 18, words, class_="tick mid")


def _band(number: int, bin_s: float, floor: Sequence[float], roof: Sequence[float], x: Scale, y: Scale) -> str:
    upper = _steps(roof, bin_s, x, y)
    lower = _steps(floor, bin_s, x, y)
    note = title(f"worker {number}: {sum(b - a for a, b in zip(floor, roof, strict=True)) * bin_s:,.0f} flights")
    return tag("path", note, d=path([*upper, *reversed(lower)], closed=True), class_=f"band {_hue(number)}")


def _steps(values: Sequence[float], bin_s: float, x: Scale, y: Scale) -> list[Point]:
    points: list[Point] = []
    for at, value in enumerate(values):
        points += [(min(x.end, x(at * bin_s)), y(value)), (min(x.end, x((at + 1) * bin_s)), y(value))]
    return points


def _band_label(number: int, bin_s: float, floor: Sequence[float], roof: Sequence[float], x: Scale, y: Scale) -> str:
    busy = [at for at, (a, b) in enumerate(zip(floor, roof, strict=True)) if b > a]
    if not busy:
        return ""
    at = busy[len(busy) // 2]
    thick = y(floor[at]) - y(roof[at])
    if thick < 16:
        return ""
    return text(x((at + 0.5) * bin_s), y((floor[at] + roof[at]) / 2) + 5, f"worker {number}", class_="on-band mid")


def _kill(worker: WorkerRecord, run: Run, x: Scale, top: float, bottom: float) -> str:
    seconds = ((worker.killed_ns or 0) - run.started_ns) / 1e9
    at = x(seconds)
    near_end = at > WIDTH * 0.7
    words = f"SIGKILL: worker {worker.number} (pid {worker.pid}) dies at {seconds:.1f} s"
    return line((at, top - 22), (at, bottom), class_="kill") + text(
        at + (-8 if near_end else 8), top - 12, words, class_="killed end" if near_end else "killed"
    )


def _hours(cells: Mapping[tuple[int, int], Cell]) -> list[int]:
    flown: dict[int, int] = {}
    for (_, hour), cell in cells.items():
        flown[hour] = flown.get(hour, 0) + cell.flights
    busy = [hour for hour, count in flown.items() if count * 2000 >= sum(flown.values())]
    return list(range(min(busy), max(busy) + 1)) if busy else []


def _mean(cell: Cell) -> float:
    return cell.minutes / cell.flights if cell.flights else 0.0


def _square(x: float, y: float, wide: float, tall: float, cell: Cell | None, most: float, when: str) -> str:
    if cell is None:
        return tag("rect", x=x + 1, y=y + 1, width=wide - 2, height=tall - 2, rx=3, class_="empty")
    shade = min(SHADES - 1, int((_mean(cell) / most) ** 0.5 * SHADES))
    note = title(f"{when}: {_mean(cell):.1f} min inherited by each of {cell.flights:,} flights")
    return tag("rect", note, x=x + 1, y=y + 1, width=wide - 2, height=tall - 2, rx=3, class_=f"q{shade}")


def _shades(left: float, y: float, most: float) -> str:
    """The key. Shades grow with the square root, so that the many calm cells differ too."""
    swatches = [
        tag("rect", x=left + 1 + k * 42, y=y, width=40, height=10, rx=2, class_=f"q{k}")
        + text(left + 1 + k * 42, y + 25, f"{most * (k / SHADES) ** 2:.1f}", class_="tick")
        for k in range(SHADES)
    ]
    return "".join(swatches) + text(left + SHADES * 42 + 8, y + 10, "minutes a flight, and more", class_="tick")


def _month_axis(x: Scale, first: date, span: int, top: float, bottom: float) -> list[str]:
    parts: list[str] = []
    for offset in range(span):
        day = first + timedelta(days=offset)
        if day.day == 1 or offset == 0:
            at = x(float(offset))
            parts.append(line((at, top), (at, bottom), class_="grid"))
            parts.append(text(at + 4, top - 2, _MONTHS[day.month - 1], class_="tick"))
    return parts


def _ribbon(spreader: Spreader, curve: Sequence[float], x: Scale, middle: float, zoom: float) -> list[str]:
    half = [max(0.6, value * zoom) for value in curve]
    upper = [(x(float(at)), middle - h) for at, h in enumerate(half)]
    lower = [(x(float(at)), middle + h) for at, h in enumerate(half)]
    note = title(f"{spreader.tailnum} spread {spreader.state.spread:,} minutes over {spreader.state.flights:,} flights")
    return [
        text(0, middle - 3, spreader.tailnum, class_="strong"),
        text(66, middle - 3, spreader.carrier, class_="tick"),
        text(0, middle + 13, spreader.model, class_="tick"),
        tag("path", note, d=path([*upper, *reversed(lower)], closed=True), class_="ribbon"),
        text(WIDTH, middle + 4, f"{spreader.state.spread:,} min", class_="end"),
    ]


def _bar(attempt: FlightAttempt, run: Run, death: int, x: Scale, middle: float) -> str:
    start = max(x.start, x((attempt.start_ns - death) / 1e6))
    end = max(start + 4, x(((run.end_of(attempt) or attempt.start_ns) - death) / 1e6))
    fate = "done" if attempt.done else "cut short"
    note = title(f"flight {attempt.flight} by worker {attempt.worker}: {fate}")
    style = f"bar {_hue(attempt.worker)}" + ("" if attempt.done else " cut")
    return tag("rect", note, x=start, y=middle - 7, width=end - start, height=14, rx=3, class_=style)


# --- the run as one HTML file


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
