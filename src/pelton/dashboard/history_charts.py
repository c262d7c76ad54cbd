"""How a queue and a stream went over the last hour, or the last day: from points that the store keeps, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from markupsafe import Markup

from pelton.api.times import SECOND
from pelton.api.wording import number_text, span_text, visible_text
from pelton.drawing.charts import Point, timeline
from pelton.jet.backlogs import MINUTE, BacklogPoint, StreamTrend
from pelton.queue.scan import TrendPoint

_CONSUMERS: Final = 8
"""Of how many consumers of a stream the lag is drawn."""
_MISSING: Final = 3
"""Over how many missing minutes nobody knows when jobs have ended."""


class ChartSpan(NamedTuple):
    """A span of time until now: minutes, and minutes between two points of a chart."""

    name: str
    minutes: int
    step: int


SPANS: Final = {"hour": ChartSpan("hour", 60, 1), "day": ChartSpan("day", 1440, 10)}


class HistoryChart(NamedTuple):
    """A chart, and the last of its values."""

    heading: str
    last: str
    svg: Markup


def moments_of(span: ChartSpan, now: int) -> list[int]:
    """Return the moments of the points of a span, in wall nanoseconds, and the one before them."""
    last, step = now // MINUTE // span.step, span.step * MINUTE
    return [number * step for number in range(last - span.minutes // span.step, last + 1)]


def stream_chart(rates: Sequence[tuple[int, float]], span: ChartSpan, now: int) -> HistoryChart:
    return _chart("Stored per second", {"per second": rates}, span, now, number_text)


def lag_charts(trend: StreamTrend, span: ChartSpan, now: int) -> list[HistoryChart]:
    """Return a chart for each of the consumers of a stream that had most to do, most first."""
    # One that has caught up is drawn as well: so it was.
    known = [(name, points) for name, points in trend.backlogs.items() if points]
    known.sort(key=lambda entry: (-max(point.pending + point.ack_pending for point in entry[1]), entry[0]))
    charts = []
    for name, points in known[:_CONSUMERS]:
        steps = [list(group) for _, group in groupby(points, key=lambda point: point.minute // span.step)]
        series: dict[str, Sequence[tuple[int, float]]] = {
            "pending": [(_end_of(some), float(max(one.pending for one in some))) for some in steps],
            "unsettled": [(_end_of(some), float(max(one.ack_pending for one in some))) for some in steps],
        }
        charts.append(_chart(f"{visible_text(name)}: pending; dashed: unsettled", series, span, now, _whole))
    return charts


def stored_rates(trend: StreamTrend, span: ChartSpan) -> list[tuple[int, float]]:
    """Return how many messages a second a stream has stored, at the ends of the steps of a span."""
    pairs = [
        (end[0], end[1] - begin[1], end[0] - begin[0])
        for begin, end in pairwise(trend.last_seqs)
        if end[0] - begin[0] <= _MISSING
    ]
    found = []
    for _, group in groupby(pairs, key=lambda pair: pair[0] // span.step):
        some = list(group)
        seconds = 60 * sum(minutes for _, _, minutes in some)
        found.append(((some[-1][0] + 1) * MINUTE, max(sum(count for _, count, _ in some), 0) / seconds))
    return found


def _end_of(points: Sequence[BacklogPoint]) -> int:
    return (points[-1].minute + 1) * MINUTE


def queue_charts(points: Sequence[TrendPoint], span: ChartSpan, now: int) -> list[HistoryChart]:
    """Return the charts of a queue; none without points."""
    found = [_Step(points) for points in _steps(points, span.step)]
    if not found:
        return []
    rates = [(one.at, one.ended) for one in found if one.ended is not None]
    return [
        _chart("Ended per minute", {"per minute": rates}, span, now, lambda value: number_text(float(value))),
        _chart("Due and not ended", {"jobs": [(one.at, one.depth) for one in found]}, span, now, _whole),
        *(
            _chart(
                f"{name.capitalize()} time, median and 95 %",
                {"median": [(one.at, one.times[name][0]) for one in found if name in one.times],
                 "95 %": [(one.at, one.times[name][1]) for one in found if name in one.times]},
                span, now, span_text,
            )
            for name in ("wait", "run")
        ),
    ]  # fmt: skip


def _whole(value: float) -> str:
    return number_text(round(value)) if value < 100_000 else number_text(float(value))


def _steps(points: Sequence[TrendPoint], step: int) -> Iterable[list[tuple[TrendPoint | None, TrendPoint]]]:
    pairs = pairwise([None, *points])
    for _, group in groupby(pairs, key=lambda pair: pair[1].minute // step if pair[1] else 0):
        yield [(before, point) for before, point in group if point is not None]


class _Step:
    """What is shown of some minutes: the rate over all of them, the greatest depth, the middle of the medians."""

    def __init__(self, points: list[tuple[TrendPoint | None, TrendPoint]]) -> None:
        self.at = (points[-1][1].minute + 1) * MINUTE
        known = [
            (point.ended - before.ended, point.minute - before.minute)
            for before, point in points
            if before is not None and point.minute - before.minute <= _MISSING
        ]
        minutes = sum(count for _, count in known)
        self.ended = max(sum(count for count, _ in known), 0) / minutes if minutes else None
        self.depth = float(max(point.depth for _, point in points))
        self.times: dict[str, tuple[float, float]] = {}
        ran = [point for _, point in points if point.run_p95]
        if ran:
            for name in ("wait", "run"):
                medians = sorted(getattr(point, name) for point in ran)
                self.times[name] = medians[len(medians) // 2], max(getattr(point, f"{name}_p95") for point in ran)


def _chart(
    heading: str,
    series: dict[str, Sequence[tuple[int, float]]],
    span: ChartSpan,
    now: int,
    words: Callable[[float], str],
) -> HistoryChart:
    begin = now // MINUTE * MINUTE - span.minutes * MINUTE
    shown: dict[str, Sequence[Point]] = {
        name: [((at - begin) / SECOND, value) for at, value in values if at > begin] for name, values in series.items()
    }
    drawn = timeline(
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=begin // SECOND),
        (span.minutes * 60.0, span.step * 60.0),
        shown,
        f"{heading} over the last {span.name}",
        words,
    )
    last = next(iter(shown.values()))
    return HistoryChart(heading, words(last[-1][1]) if last else "-", Markup(drawn))
