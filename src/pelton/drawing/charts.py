"""Charts over time and over names, graphs of what comes after what, as SVG; and pages that hold them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

Point = tuple[float, float]


def tag(name: str, *children: str, **attributes: object) -> str:
    """Return an element; `children` are markup. `class_` means `class`, other underscores mean hyphens."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(children)}</{name}>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Return a label; `words` are escaped."""
    return tag("text", escape(words), x=x, y=y, **attributes)


def title(words: str) -> str:
    """Return a tooltip for the parent element."""
    return tag("title", escape(words))


def line(start: Point, end: Point, **attributes: object) -> str:
    return tag("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], **attributes)


def path(points: Iterable[Point], closed: bool = False) -> str:
    """Return the `d` of a path through `points`."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f"M{steps}{'Z' if closed else ''}" if steps else ""


class Scale(NamedTuple):
    """Maps the values from `low` to `high` onto the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values from `low` to `high`, approximately `about` of them."""
    step = _round_step((high - low) / about)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _round_step(raw: float) -> float:
    if raw <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# --- a page as one HTML file: self-contained, no script, no network, with light and dark colours

HUES: Final = 6
SHADES: Final = 8
_STYLE: Final = Path(__file__).with_name("page.css")


def page(title: str, body: str) -> str:
    """Return a whole page; ``body`` is markup.

    Its charts may use the classes ``w0`` to ``w5`` (hues, for categories) and ``q0`` to ``q7`` (shades, for
    amounts).
    """
    hues = "".join(f".w{k}{{fill:var(--w{k})}}.l{k}{{stroke:var(--w{k})}}" for k in range(HUES))
    shades = "".join(f".q{k}{{fill:var(--q{k})}}" for k in range(SHADES))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE.read_text('utf-8')}{hues}{shades}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def head(heading: str, words: str) -> str:
    """Return the page's heading and introduction."""
    return tag("h1", escape(heading)) + tag("p", escape(words))


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return the most important figures, each with its label."""
    cells = (tag("div", tag("b", escape(value)), tag("span", escape(words)), class_="tile") for value, words in figures)
    return tag("div", *cells, class_="tiles")


def section(heading: str, words: str, content: str) -> str:
    """Return a section of the page, empty without content; ``content`` is markup."""
    return tag("section", tag("h2", escape(heading)), tag("p", escape(words)), content) if content else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, its first column left, the others right."""
    top = tag("tr", *(tag("th", escape(heading)) for heading in headings))
    lines = (tag("tr", *(tag("td", escape(cell)) for cell in row)) for row in rows)
    return tag("table", top, *lines)


# --- charts over time and over names, each one SVG element; colours are the page's classes

_DAY: Final = 86_400.0
_STEPS: Final = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY),
)
_MOST_DAYS: Final = 1000


def moments(begin: datetime, seconds: float, most: int = 7) -> list[tuple[float, str]]:
    """Return round moments in a span of time, ``most`` of them: how many seconds after ``begin``, and as text."""
    step = next((step for step in _STEPS if seconds / step < most), _MOST_DAYS * _DAY)
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = (begin - midnight).total_seconds()
    first = -int(-passed // step)
    found: list[tuple[float, str]] = []
    for number in range(first, first + most + 1):
        at = number * step - passed
        if at <= seconds + 1e-9:
            found.append((at, _moment_text(midnight + timedelta(seconds=number * step), step, seconds)))
    return found


def _moment_text(moment: datetime, step: float, seconds: float) -> str:
    if step >= _DAY:
        return f"{moment:%Y-%m-%d}"
    if step < 1:
        return f"{moment:%H:%M:%S.%f}"[: -4 if step < 0.1 else -5]
    clock = f"{moment:%H:%M}" if step >= 60 else f"{moment:%H:%M:%S}"
    return f"{moment:%m-%d} {clock}" if seconds > _DAY else clock


WIDTH: Final = 1040.0
_TOP: Final = 34.0
_BOTTOM: Final = 250.0
_LEFT: Final = 64.0
_RIGHT: Final = 40.0
_ROW: Final = 26.0


def columns(starts: Sequence[datetime], step: timedelta, series: Mapping[str, Sequence[float]], label: str) -> str:
    """Return stacked columns over time: each of ``series`` has a value for each of ``starts``."""
    if not starts:
        return ""
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    x, y = _over(starts, step), Scale(0.0, max(totals) * 1.05 or 1.0, _BOTTOM, _TOP)
    parts = _axes(starts, x, y)
    floor = [0.0] * len(starts)
    for index, (name, values) in enumerate(series.items()):
        for at, value in enumerate(values):
            if value:
                left, right = x(_seconds(starts, at)), x(_seconds(starts, at) + step.total_seconds())
                top = y(floor[at] + value)
                note = title(f"{starts[at]:%Y-%m-%d %H:%M:%S}: {value:,.6g} {name}")
                width = max(right - left - 1, 0.5)
                parts.append(
                    tag("rect", note, x=left, y=top, width=width, height=y(floor[at]) - top, class_=_hue(index))
                )
            floor[at] += value
    return _svg(_BOTTOM + 28, [*parts, _key(list(series))], label)


def curves(
    starts: Sequence[datetime], step: timedelta, series: Mapping[str, Sequence[float]], label: str, unit: str = ""
) -> str:
    """Return a curve for each of ``series``, which has a value in ``unit`` for each of ``starts``."""
    if not starts:
        return ""
    most = max(max(values) for values in series.values())
    x, y = _over(starts, step), Scale(0.0, most * 1.05 or 1.0, _BOTTOM, _TOP)
    parts = _axes(starts, x, y, unit)
    half = step.total_seconds() / 2
    for index, (name, values) in enumerate(series.items()):
        points = [(x(_seconds(starts, at) + half), y(value)) for at, value in enumerate(values)]
        parts.append(tag("path", d=path(points), class_=f"curve l{index % HUES}"))
        parts += [
            tag("circle", title(f"{starts[at]:%Y-%m-%d %H:%M:%S}: {name} {_amount(values[at], unit)}"),
                cx=px, cy=py, r=2.5, class_=_hue(index))
            for at, (px, py) in enumerate(points)
        ]  # fmt: skip
    return _svg(_BOTTOM + 28, [*parts, _key(list(series))], label)


SMALL: Final = (400.0, 130.0)
"""Width and height of a timeline, which stands beside others."""


def timeline(
    begin: datetime,
    span: tuple[float, float],
    series: Mapping[str, Sequence[Point]],
    label: str,
    words: Callable[[float], str],
) -> str:
    """Return a small chart of what was noted at some moments, each of ``series`` as seconds after ``begin`` and value.

    ``span``: how many seconds are shown, and how many are between two points; where several are missing is a gap.
    ``words`` are those of a value. The first series is an area.
    """
    seconds, step = span
    high = max((value for points in series.values() for _, value in points), default=0.0)
    x, y = Scale(0.0, seconds, 52.0, SMALL[0] - 6), Scale(0.0, high * 1.1 or 1.0, SMALL[1] - 20, 8.0)
    parts: list[str] = []
    # Between whole numbers there may be ticks that read like their neighbours: the first of them is shown.
    for shown, tick in {words(tick): tick for tick in reversed(ticks(0, y.high, 3))}.items():
        parts.append(line((x.start, y(tick)), (x.end, y(tick)), class_="grid"))
        parts.append(text(x.start - 6, y(tick) + 4, shown, class_="tick end"))
    for at, moment in moments(begin, seconds, 6):
        parts.append(text(min(x(at), x.end - 14), SMALL[1] - 4, moment, class_="tick mid"))
    for index, (name, points) in enumerate(series.items()):
        for run in _runs(points, 3 * step):
            # A point alone is a short line, or nobody would see it.
            curve = [(x(at), y(value)) for at, value in run]
            curve = [(curve[0][0] - 1, curve[0][1]), *curve] if len(curve) == 1 else curve
            if not index:
                floor = [(curve[-1][0], y.start), (curve[0][0], y.start)]
                parts.append(tag("path", d=path([*curve, *floor], closed=True), class_="area"))
            parts.append(tag("path", d=path(curve), class_=f"curve l{index}"))
        for at, value in points:
            note = title(f"{begin + timedelta(seconds=at):%Y-%m-%d %H:%M}: {words(value)} {name}")
            width = x(step) - x.start
            parts.append(tag("rect", note, x=x(at) - width, y=0, width=width, height=y.start, class_="hit"))
    return tag("svg", *parts, viewBox=f"0 0 {SMALL[0]:g} {SMALL[1]:g}", role="img", aria_label=label)


def _runs(points: Sequence[Point], longest: float) -> list[list[Point]]:
    """Return points in runs without a gap of more than ``longest``."""
    runs: list[list[Point]] = []
    for point in points:
        if not runs or point[0] - runs[-1][-1][0] > longest:
            runs.append([])
        runs[-1].append(point)
    return runs


def bars(values: Sequence[tuple[str, float, str]], label: str) -> str:
    """Return a bar for each name, as long as its value, with a text after it."""
    if not values:
        return ""
    left = min(460.0, 12.0 + max(len(name) for name, _, _ in values) * 7.2)
    x = Scale(0.0, max(value for _, value, _ in values) or 1.0, left, WIDTH - 130)
    parts: list[str] = []
    for row, (name, value, words) in enumerate(values):
        middle = (row + 0.5) * _ROW
        shown = name if len(name) <= 62 else name[:61] + "…"
        parts.append(tag("text", title(name), _escape(shown), x=left - 10, y=middle + 4, class_="end"))
        parts.append(tag("rect", x=left, y=middle - 8, width=max(x(value) - left, 1), height=16, rx=3, class_="w0"))
        parts.append(text(max(x(value), left + 1) + 8, middle + 4, words, class_="tick"))
    return _svg(len(values) * _ROW + 4, parts, label)


def _escape(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _over(starts: Sequence[datetime], step: timedelta) -> Scale:
    return Scale(0.0, (starts[-1] - starts[0] + step).total_seconds(), _LEFT, WIDTH - 10)


def _seconds(starts: Sequence[datetime], at: int) -> float:
    return (starts[at] - starts[0]).total_seconds()


def _axes(starts: Sequence[datetime], x: Scale, y: Scale, unit: str = "") -> list[str]:
    parts: list[str] = []
    for tick in ticks(0, y.high):
        parts.append(line((_LEFT, y(tick)), (WIDTH - 10, y(tick)), class_="grid"))
        parts.append(text(_LEFT - 8, y(tick) + 4, _amount(tick, unit), class_="tick end"))
    for at, words in moments(starts[0], x.high):
        parts.append(line((x(at), _BOTTOM), (x(at), _BOTTOM + 5), class_="grid"))
        if x(at) < WIDTH - _RIGHT:
            parts.append(text(x(at), _BOTTOM + 20, words, class_="tick mid"))
    return parts


def _amount(value: float, unit: str) -> str:
    return f"{value:,.6g} {unit}".rstrip()


def _key(names: Sequence[str]) -> str:
    parts: list[str] = []
    at = _LEFT
    for index, name in enumerate(names):
        parts.append(tag("rect", x=at, y=4, width=12, height=12, rx=2, class_=_hue(index)))
        parts.append(text(at + 18, 15, name, class_="tick"))
        at += 40 + len(name) * 7.5
    return "".join(parts)


def _hue(index: int) -> str:
    return f"w{index % HUES}"


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)


# --- graphs of what comes after what, as SVG: layers from left to right, a box for each node. Pure

_WIDTH: Final = 150.0
_HEIGHT: Final = 38.0
_GAP_X: Final = 46.0
_GAP_Y: Final = 12.0
_LONGEST: Final = 20
_FILL: Final = "var(--state-soft, none)"
_STROKE: Final = "var(--state, currentColor)"


class GraphNode(NamedTuple):
    """A node: its label, what is written below, its state, where it leads, and the numbers of those before it."""

    number: int
    label: str
    note: str
    state: str
    href: str
    after: Sequence[int]


def layers_of(nodes: Sequence[GraphNode]) -> dict[int, int]:
    """Return the layer of each node, one more than the highest of those before it; unknown ones do not count."""
    layers = {node.number: 0 for node in nodes}
    # As often as a chain can be long; a circle ends there, too.
    for _ in nodes:
        before = dict(layers)
        for node in nodes:
            known = [layers[number] + 1 for number in node.after if number in layers and number != node.number]
            layers[node.number] = min(max(known, default=0), len(nodes) - 1)
        if layers == before:
            break
    return layers


def flow_graph(nodes: Sequence[GraphNode], label: str) -> str:
    """Return the graph of some nodes as markup; labels and addresses are escaped."""
    places = _places(nodes)
    width = max((x for x, _ in places.values()), default=0.0) + _WIDTH + 2
    height = max((y for _, y in places.values()), default=0.0) + _HEIGHT + 2
    edges = [_edge(places[number], places[node.number]) for node in nodes for number in node.after if number in places]
    boxes = [_box(node, *places[node.number]) for node in nodes]
    return tag(
        "svg", title(label), *edges, *boxes, class_="graph", viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}", height=f"{height:g}", role="img", aria_label=label,
    )  # fmt: skip


def _places(nodes: Sequence[GraphNode]) -> Mapping[int, tuple[float, float]]:
    """Return where the boxes begin: in each layer, those stand together that come after the same ones."""
    layers, rows, used = layers_of(nodes), dict[int, float](), dict[int, int]()
    for node in sorted(nodes, key=lambda one: layers[one.number]):
        before = [rows[number] for number in node.after if number in rows]
        rows[node.number] = sum(before) / len(before) if before else float(len(rows))
    places: dict[int, tuple[float, float]] = {}
    for node in sorted(nodes, key=lambda one: (layers[one.number], rows[one.number], one.number)):
        layer = layers[node.number]
        row = used[layer] = used.get(layer, -1) + 1
        places[node.number] = (1 + layer * (_WIDTH + _GAP_X), 1 + row * (_HEIGHT + _GAP_Y))
    return places


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    x0, y0, x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT / 2, end[0], end[1] + _HEIGHT / 2
    middle = (x0 + x1) / 2
    d = f"M{x0:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}"
    return tag("path", d=d, fill="none", stroke="currentColor", opacity="0.5")


def _box(node: GraphNode, x: float, y: float) -> str:
    short = node.label if len(node.label) <= _LONGEST else f"{node.label[: _LONGEST - 1]}\u2026"
    inner = (
        title(f"{node.number}: {node.label}, {node.state}"),
        tag("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=6, fill=_FILL, stroke=_STROKE),
        text(x + 8, y + 16, short, font_size=12, fill="currentColor"),
        text(x + 8, y + 31, node.note, font_size=11, fill=_STROKE),
    )
    return tag("g", tag("a", *inner, href=node.href), data_state=node.state)
