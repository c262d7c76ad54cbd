"""The pulls and pumps of this process that wait for messages, and what wakes them.

A waiting pull has found nothing. It checks again when any process committed something that its consumer may want, at
the nearest deadline of its consumer, and when it expires. The check is a read, and only if it promises a message does
a transaction follow. Many consumers with different filters may wait on one stream: a message wakes only those whose
filters it matches. After commits of other processes, one read finds out whom they may concern, and wakes those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pelton.api import PeltonError
from pelton.consumers import NEVER, ConsumerLog
from pelton.engine.session import Key, Wakes
from pelton.runtime import Signal
from pelton.subjects import SubjectIndex

_EVERYTHING: Final = (">",)


class WaitingPulls:
    """Signals of the consumers that pulls of this process wait for, by stream and consumer name."""

    def __init__(self) -> None:
        self._signals: dict[Key, Signal] = {}
        # Whether no pull or pump waits.
        self.is_empty = True
        self._counts: dict[Key, int] = {}
        self._filters: dict[Key, tuple[str, ...]] = {}
        self._by_stream: dict[str, SubjectIndex[Key]] = {}
        # Each says, in a snapshot, whether what others have committed may concern its consumer.
        self._checks: dict[Key, Callable[[Key], bool]] = {}

    def join(self, key: Key, filters: Iterable[str], is_concerned: Callable[[Key], bool] | None = None) -> Signal:
        """Wait for messages that match these filters; without filters, for all of the stream.

        ``is_concerned`` returns, in a snapshot, whether a commit of another process is a reason to look; None: always.
        """
        signal, self.is_empty = self._signals.setdefault(key, Signal()), False
        if is_concerned is not None:
            self._checks[key] = is_concerned
        self._counts[key] = self._counts.get(key, 0) + 1
        self.follow(key, filters)
        return signal

    def follow(self, key: Key, filters: Iterable[str]) -> None:
        """Replace the filters: wait for messages that match these from now on."""
        wanted = tuple(filters) or _EVERYTHING
        if self._filters.get(key) == wanted:
            return
        stream, _ = key
        index = self._by_stream.setdefault(stream, SubjectIndex())
        for text in self._filters.get(key, ()):
            index.remove(text, key)
        for text in wanted:
            index.insert(text, key)
        self._filters[key] = wanted

    def leave(self, key: Key) -> None:
        self._counts[key] -= 1
        if self._counts[key] == 0:
            del self._counts[key], self._signals[key]
            self.is_empty = not self._signals
            self._checks.pop(key, None)
            stream, _ = key
            index = self._by_stream[stream]
            for text in self._filters.pop(key):
                index.remove(text, key)
            if not len(index):
                del self._by_stream[stream]

    def has(self, key: Key) -> bool:
        """Whether anybody waits for a consumer."""
        return key in self._signals

    def count(self, consumer: ConsumerLog) -> int:
        return self._counts.get((consumer.log.name, consumer.name), 0)

    def notify(self, news: Wakes) -> None:
        """Wake the consumers that a committed transaction concerns."""
        woken = {key for key in news.consumers if key in self._signals}
        if news.streams:
            woken.update((stream, name) for stream, name in self._signals if stream in news.streams)
        for stream, subjects in news.arrived.items():
            index = self._by_stream.get(stream)
            if index is not None:
                for subject in subjects:
                    woken.update(index.match(subject))
        # In an order that does not depend on the process's hashes: equal runs are equal.
        for key in sorted(woken):
            self._signals[key].notify()

    def others_committed(self, read: Callable[[Callable[[], list[Key]]], list[Key]]) -> None:
        """Wake those whom commits of other processes may concern; ``read`` runs the look in a snapshot."""
        if not self._signals:
            return
        try:
            concerned = read(self._concerned)
        except PeltonError:
            # Those who wait meet the same error, or a consumer is gone.
            concerned = list(self._signals)
        for key in concerned:
            self._signals[key].notify()

    def _concerned(self) -> list[Key]:
        checks = self._checks
        return [key for key in self._signals if (check := checks.get(key)) is None or check(key)]

    def notify_all(self) -> None:
        for signal in list(self._signals.values()):
            signal.notify()


def delays_of(consumer: ConsumerLog, now: int) -> list[float]:
    """Return after how many seconds to look again at a consumer of which nothing can be delivered."""
    due, threshold = consumer.next_due(now), consumer.config.inactive_threshold.ns
    delays = [] if due == NEVER else [max(due - now, 0) / 1e9]
    return [*delays, threshold / 2e9] if threshold else delays
