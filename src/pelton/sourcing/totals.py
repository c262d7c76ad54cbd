"""What counters have come to, as far as it was carried (ADR-49): what each message adds in the target.

A counter's message tells its total. What it adds in the target is what the total has grown by since the last one that
was carried: so nothing is lost of messages that limits have removed before they were carried. The last message of the
subject in the target tells that total, if it is one of ours, or that there was none. Where others add to the same
counter it cannot tell: then a message adds what it added in its origin.
"""

from __future__ import annotations

from typing import Final

from pelton.api import Delivered, headers
from pelton.api.numbers import counter_value, from_digits

_MOST: Final = 10_000


class Totals:
    """The last total that was carried of each counter; of the latest ones, so that it stays small."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def knows(self, subject: str) -> bool:
        return subject in self._known

    def learn(self, subject: str, total: int | None) -> None:
        """Take down the total that the target has of us; None where it cannot tell."""
        self._known.pop(subject, None)
        self._known[subject] = total

    def forget(self) -> None:
        """Forget all: what was sent last may have been stored or not."""
        self._known.clear()

    def tidy(self) -> None:
        """Forget those that were longest not asked for."""
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def added_by(self, message: Delivered) -> tuple[int, int]:
        """Return what a message adds in the target, and its total, which is the last one from now on."""
        total = counter_value(message.data)
        before = self._known.get(message.subject)
        own = from_digits(headers.first(message.headers or b"", headers.INCREMENT) or "0")
        self.learn(message.subject, total)
        return (own if before is None else total - before), total


def is_counted(message: Delivered) -> bool:
    """Whether a message is one of a counter."""
    return message.headers is not None and headers.first(message.headers, headers.INCREMENT) is not None
