"""Those who wait for something to deliver: who is woken when, in this process.

A waiting pull has looked and found nothing. It looks again when something that its consumer may want was committed,
by whichever process, when the nearest deadline of its consumer has come, and when it expires. Looking is a read; only
a look that promises something becomes a transaction. Many consumers with filters of their own may wait on one stream:
a message wakes only those whose filters it matches. What another process has committed wakes all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pelton.consumers import NEVER, ConsumerLog
from pelton.runtime import Clock, Signal, Timer
from pelton.streams import StreamLog
from pelton.subjects import SubjectIndex

Key = tuple[str, str]
_FEW: Final = 64
_EVERYTHING: Final = (">",)


class News:
    """What one transaction changed, for those who wait; nothing is noted while nobody does (``wanted``)."""

    def __init__(self) -> None:
        self.wanted = False
        self.streams: set[str] = set()
        self.consumers: set[Key] = set()
        self.arrived: dict[str, set[str]] = {}

    def of(self, log: StreamLog) -> None:
        """Note what became of a stream that was written: messages arrived, or some were removed."""
        effects, removals = log.state.effects, log.state.removals
        if not self.wanted:
            effects.known_removals = removals
        elif removals != effects.known_removals or len(effects.arrived) > _FEW:
            effects.known_removals = removals
            self.streams.add(log.name)
        elif effects.arrived:
            self.arrived.setdefault(log.name, set()).update(effects.arrived)
        effects.arrived.clear()

    def of_all(self, stream: str) -> None:
        """Note that all who wait on a stream have to look: it or one of its consumers is gone."""
        if self.wanted:
            self.streams.add(stream)

    def of_consumer(self, key: Key) -> None:
        """Note what became of a consumer."""
        if self.wanted:
            self.consumers.add(key)

    def add(self, other: News) -> None:
        """Take over what another one holds."""
        self.streams |= other.streams
        self.consumers |= other.consumers
        for stream, subjects in other.arrived.items():
            self.arrived.setdefault(stream, set()).update(subjects)

    def clear(self) -> None:
        self.streams.clear()
        self.consumers.clear()
        self.arrived.clear()


class WaitingPulls:
    """Signals of the consumers that pulls of this process wait for, by stream and consumer name."""

    def __init__(self) -> None:
        self.news = News()
        self._signals: dict[Key, Signal] = {}
        self._counts: dict[Key, int] = {}
        self._filters: dict[Key, tuple[str, ...]] = {}
        self._by_stream: dict[str, SubjectIndex[Key]] = {}

    def join(self, key: Key, filters: Iterable[str]) -> Signal:
        """Wait for messages that match these filters; none: for all of the stream's."""
        signal = self._signals.setdefault(key, Signal())
        self._counts[key] = self._counts.get(key, 0) + 1
        self.news.wanted = True
        self.follow(key, filters)
        return signal

    def follow(self, key: Key, filters: Iterable[str]) -> None:
        """Wait for messages that match these filters from now on."""
        wanted = tuple(filters) or _EVERYTHING
        if self._filters.get(key) == wanted:
            return
        index = self._by_stream.setdefault(key[0], SubjectIndex())
        for text in self._filters.get(key, ()):
            index.remove(text, key)
        for text in wanted:
            index.insert(text, key)
        self._filters[key] = wanted

    def leave(self, key: Key) -> None:
        self._counts[key] -= 1
        if self._counts[key] == 0:
            del self._counts[key], self._signals[key]
            index = self._by_stream[key[0]]
            for text in self._filters.pop(key):
                index.remove(text, key)
            if not len(index):
                del self._by_stream[key[0]]
            self.news.wanted = bool(self._signals)

    def count(self, consumer: ConsumerLog) -> int:
        return self._counts.get((consumer.log.name, consumer.name), 0)

    def notify_of(self, news: News) -> None:
        """Wake those whom news from another connection concern."""
        self.news.add(news)
        news.clear()
        self.notify()

    def notify(self) -> None:
        """Wake those whom the transaction just committed concerns."""
        news = self.news
        woken = {key for key in news.consumers if key in self._signals}
        if news.streams:
            woken.update(key for key in self._signals if key[0] in news.streams)
        for stream, subjects in news.arrived.items():
            index = self._by_stream.get(stream)
            if index is not None:
                for subject in subjects:
                    woken.update(index.match(subject))
        news.clear()
        for key in woken:
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
