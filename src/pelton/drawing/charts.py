"""Charts over time and over names, each one SVG element; colours are the page's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from pelton.drawing.page import HUES
from pelton.drawing.svg import Scale, line, path, tag, text, ticks, title

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
            found.append((at, _shown(midnight + timedelta(seconds=number * step), step, seconds)))
    return found


def _shown(moment: datetime, step: float, seconds: float) -> str:
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
        parts.append(tag("text", title(name), _escaped(shown), x=left - 10, y=middle + 4, class_="end"))
        parts.append(tag("rect", x=left, y=middle - 8, width=max(x(value) - left, 1), height=16, rx=3, class_="w0"))
        parts.append(text(max(x(value), left + 1) + 8, middle + 4, words, class_="tick"))
    return _svg(len(values) * _ROW + 4, parts, label)


def _escaped(words: str) -> str:
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
