"""Logs what goes wrong with a connection: an outage brings the same error many times a second, and logs it seldom."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pelton.runtime import Clock

_log: Final = logging.getLogger("pelton.cluster")
_SAME_AGAIN_S: Final = 60.0
_MOST: Final = 64


class ComplaintLog:
    """The log of one connection: the same text once a minute, until the connection is back."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._logged: dict[str, float] = {}

    def add(self, error: Exception) -> None:
        """Log an error, unless it was just logged."""
        now, text = self._clock.monotonic(), str(error)
        if now - self._logged.get(text, -inf) < _SAME_AGAIN_S:
            return
        if len(self._logged) >= _MOST:
            self._logged.clear()
        self._logged[text] = now
        _log.warning("cluster %s: %s", self._name, error, extra={"store": self._name})

    def is_over(self) -> None:
        """Note that the connection is back: what goes wrong next is news."""
        self._logged.clear()
