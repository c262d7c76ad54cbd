"""How the lag of consumers went while somebody watched: one value every ten seconds, for ten minutes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from pelton.dashboard.texts import number_text, span_text

_EVERY_S: Final = 10.0
_MOST: Final = 60
_HEIGHT: Final = 20
_NONE: Final[deque[tuple[float, int]]] = deque()


class LagSample(NamedTuple):
    """The lag of a consumer, by its name, at the time of a picture."""

    name: str
    lag: int


class LagHistory:
    """The last values of some consumers."""

    def __init__(self) -> None:
        self._values: dict[str, deque[tuple[float, int]]] = {}

    def add(self, at: float, samples: Iterable[LagSample]) -> None:
        """Note how it is at a time, in seconds that only grow; consumers that are not named are forgotten."""
        kept: dict[str, deque[tuple[float, int]]] = {}
        for sample in samples:
            values = kept[sample.name] = self._values.get(sample.name) or deque(maxlen=_MOST)
            if values and values[-1][0] // _EVERY_S == at // _EVERY_S:
                # Of each ten seconds, the last one is kept.
                values.pop()
            values.append((at, sample.lag))
        self._values = kept

    def points(self, name: str) -> str:
        """Return the values as points of a line, 60 wide and 20 high, the newest to the right."""
        if not (values := self._values.get(name)):
            return ""
        end, top = values[-1][0], max(lag for _, lag in values) or 1
        return " ".join(
            f"{_MOST - (end - at) / _EVERY_S:.3g},{_HEIGHT - 1 - (_HEIGHT - 2) * lag / top:.3g}" for at, lag in values
        )

    def text(self, name: str) -> str:
        """Return in words how it was when it was noted first; empty while there is one value."""
        if len(values := self._values.get(name, _NONE)) < 2:
            return ""
        return f"was {number_text(values[0][1])} {span_text(float(round(values[-1][0] - values[0][0])))} ago"
