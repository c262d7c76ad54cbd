"""Totals of copied counters (ADR-49): how much each message adds in the target.

A counter's message contains its total. In the target it adds the growth of the total since the last copied
message: so nothing is lost of messages that limits removed before they were copied. The last message of the
subject in the target shows that total, if it is one of ours, or that there was none. If others add to the same
counter the total is unknown: then a message adds what it added in its origin.
"""

from __future__ import annotations

from typing import Final

from pelton.api import Delivered, headers
from pelton.api.numbers import counter_value, from_digits

_MOST: Final = 10_000


class Totals:
    """The last copied total of each counter, bounded to the most recently used."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def knows(self, subject: str) -> bool:
        return subject in self._known

    def learn(self, subject: str, total: int | None) -> None:
        """Note the total that the target has from us; None if unknown."""
        self._known.pop(subject, None)
        self._known[subject] = total

    def forget(self) -> None:
        """Forget all: the last messages sent may have been stored or not."""
        self._known.clear()

    def tidy(self) -> None:
        """Forget the least recently used."""
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def added_by(self, message: Delivered) -> tuple[int, int]:
        """Return what a message adds in the target, and its total, which is remembered as the last one."""
        total = counter_value(message.data)
        before = self._known.get(message.subject)
        own = from_digits(headers.first(message.headers or b"", headers.INCREMENT) or "0")
        self.learn(message.subject, total)
        return (own if before is None else total - before), total


def is_counted(message: Delivered) -> bool:
    """Whether a message belongs to a counter."""
    return message.headers is not None and headers.first(message.headers, headers.INCREMENT) is not None
