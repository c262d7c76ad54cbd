"""What one transaction changed, for pulls that wait for messages."""

from __future__ import annotations

from pelton.streams import StreamLog
from pelton.streams.effects import MANY

Key = tuple[str, str]
"""A consumer, by the name of its stream and its own name."""


class Wakes:
    """The streams that lost messages or consumers, the consumers that were written, and the subjects that arrived."""

    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.consumers: set[Key] = set()
        self.arrived: dict[str, set[str]] = {}

    def note(self, log: StreamLog, *, wanted: bool) -> None:
        """Record the changes of a stream that was written, if any pull waits, and mark them as known."""
        effects, removals = log.state.effects, log.state.removals
        if not wanted:
            effects.known_removals = removals
        elif removals != effects.known_removals or len(effects.arrived) > MANY:
            effects.known_removals = removals
            self.streams.add(log.name)
        elif effects.arrived:
            self.arrived.setdefault(log.name, set()).update(effects.arrived)
        effects.arrived.clear()

    def copy(self) -> Wakes:
        """Return an independent copy."""
        news = Wakes()
        news.streams, news.consumers = set(self.streams), set(self.consumers)
        news.arrived = {stream: set(subjects) for stream, subjects in self.arrived.items()}
        return news

    def __bool__(self) -> bool:
        return bool(self.streams or self.consumers or self.arrived)
