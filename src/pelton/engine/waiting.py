"""Pulls that wait: who is woken when, in this process.

A waiting pull has looked and found nothing. It looks again when something was committed on its stream, by
whichever process, when the nearest deadline of its consumer has come, and when it expires. Looking is a read;
only a look that promises something becomes a transaction.
"""

from __future__ import annotations

from pelton.consumers import NEVER, ConsumerLog
from pelton.runtime import Clock, Signal, Timer
from pelton.streams import StreamLog

Key = tuple[str, str]


class WaitingPulls:
    """Signals of the consumers that pulls of this process wait for, by stream and consumer name."""

    def __init__(self) -> None:
        self._signals: dict[Key, Signal] = {}
        self._counts: dict[Key, int] = {}
        self._by_stream: dict[str, set[Key]] = {}

    def join(self, key: Key) -> Signal:
        signal = self._signals.setdefault(key, Signal())
        self._counts[key] = self._counts.get(key, 0) + 1
        self._by_stream.setdefault(key[0], set()).add(key)
        return signal

    def leave(self, key: Key) -> None:
        self._counts[key] -= 1
        if self._counts[key] == 0:
            del self._counts[key], self._signals[key]
            keys = self._by_stream[key[0]]
            keys.discard(key)
            if not keys:
                del self._by_stream[key[0]]

    def count(self, consumer: ConsumerLog) -> int:
        return self._counts.get((consumer.log.name, consumer.name), 0)

    def notify(self, touched: set[StreamLog]) -> None:
        """Something was committed on these streams."""
        if not self._signals:
            return
        for log in touched:
            for key in self._by_stream.get(log.name, ()):
                self._signals[key].notify()

    def notify_all(self) -> None:
        for signal in list(self._signals.values()):
            signal.notify()


class Alarm:
    """One timer that gives a signal; set anew for every wait."""

    def __init__(self, clock: Clock, signal: Signal) -> None:
        self._clock = clock
        self._signal = signal
        self._timer: Timer | None = None

    def set(self, delay_s: float | None) -> None:
        """Give the signal in ``delay_s`` seconds; None for never."""
        self.cancel()
        if delay_s is not None:
            self._timer = self._clock.call_later(max(delay_s, 0.0), self._signal.notify)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def seconds_until_due(consumer: ConsumerLog, now: int) -> float | None:
    """Return how long until a message of the consumer may be delivered again; None when there is none."""
    due = consumer.next_due(now)
    return None if due == NEVER else max(due - now, 0) / 1e9
