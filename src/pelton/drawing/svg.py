"""Just enough SVG: elements as strings, linear scales, and round numbers for axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

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
    """Return a straight line."""
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
        """Return the pixel of `value`."""
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values from `low` to `high`, approximately `about` of them."""
    step = _round_step((high - low) / about)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """Return each value averaged with its neighbours up to `reach` away, nearer ones weighted more."""
    weights = [reach + 1 - abs(offset) for offset in range(-reach, reach + 1)]
    whole = sum(weights)
    padded = [0.0] * reach + list(values) + [0.0] * reach
    return [sum(weight * padded[at + k] for k, weight in enumerate(weights)) / whole for at in range(len(values))]


def _round_step(raw: float) -> float:
    if raw <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
