"""All feeds of a store: who takes from whom, and when each goes on.

A feed goes on in the very transaction that gives it something to do: its origin stored messages, its stream lost some,
or it was made or changed. Chains need nothing more: what a feed stores is stored in the origin of the next one. They
end, because no stream takes from itself on any way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from pelton.api import StreamSource
from pelton.api.info import StreamSourceInfo
from pelton.sourcing.feed import Feed
from pelton.sourcing.info import source_info
from pelton.sourcing.plan import Plan
from pelton.storage import Database
from pelton.streams import CopyingLog
from pelton.subjects import Draw


class Owner(Protocol):
    """Who has the streams."""

    def use(self, log: CopyingLog, /) -> CopyingLog:
        """Return a stream with fresh state, to be flushed when the transaction ends."""

    def released(self, log: CopyingLog, sequences: list[int], /) -> None:
        """Messages of a stream that keeps them for others were taken: remove those that nobody wants any more."""


class Network:
    """The feeds between the streams of ``owner``."""

    def __init__(self, database: Database, owner: Owner, now: Callable[[], int], draw: Draw) -> None:
        self._db = database
        self._owner = owner
        self._now = now
        self._draw = draw
        self._of_stream: dict[CopyingLog, list[Feed]] = {}
        self._of_origin: dict[CopyingLog, list[Feed]] = {}
        self._watched: list[CopyingLog] = []
        # Streams whose feeds were made or changed in this transaction.
        self._changed: set[str] = set()
        # Whether messages are left for the next transaction.
        self.has_more = False

    # --- who takes from whom

    def rebuild(self, streams: dict[str, CopyingLog]) -> None:
        """Follow a change of the streams."""
        self._of_stream, self._of_origin = {}, {}
        for log in streams.values():
            log.on_stored = None
        for log in streams.values():
            for source in sources_of(log):
                if (origin := streams.get(source.name)) is not None:
                    self._connect(Feed(self._db, log, origin, Plan(source, self._draw), self._now))
        self._watched = list({**self._of_stream, **self._of_origin})
        for log in streams.values():
            watched = log in self._of_stream or log in self._of_origin
            log.gone = [] if watched else None
            if log in self._of_stream and (log.config.max_age or log.is_timed):
                # What ends makes room for others: somebody has to look at the clock.
                log.is_ticking = True

    def _connect(self, feed: Feed) -> None:
        self._of_stream.setdefault(feed.stream, []).append(feed)
        self._of_origin.setdefault(feed.origin, []).append(feed)
        feed.origin.on_stored = partial(self._stored, feed.origin)

    def takers(self, origin: CopyingLog) -> list[Feed]:
        """Return the feeds that take from a stream."""
        return self._of_origin.get(origin, [])

    @property
    def has_feeds(self) -> bool:
        """Whether any stream takes from another."""
        return bool(self._of_stream)

    def changed(self, stream: str) -> None:
        """A stream was made or changed: its feeds go on before this transaction ends."""
        self._changed.add(stream)

    def invalidate(self) -> None:
        """Others have written, or what was written does not hold."""
        for feeds in self._of_stream.values():
            for feed in feeds:
                feed.position.is_fresh = False

    def roll_back(self) -> None:
        self.invalidate()
        self._changed.clear()
        self.has_more = False

    # --- going on

    def _stored(self, origin: CopyingLog) -> None:
        for feed in self._of_origin[origin]:
            self._go_on(feed)

    def _go_on(self, feed: Feed) -> None:
        self._owner.use(feed.stream).advance(self._now())
        self._release(feed.origin, feed.go_on())
        self.has_more = self.has_more or feed.is_behind

    def _release(self, origin: CopyingLog, taken: list[int]) -> None:
        if not taken:
            return
        if origin.config.retention == "workqueue":
            origin.remove_settled(taken)
        elif origin.config.retention == "interest":
            self._owner.released(origin, taken)

    def settle(self) -> bool:
        """Do what the changes of this transaction ask for; return whether there was anything, so ask again."""
        acted = False
        for log in self._watched:
            if log.gone or log.is_emptied:
                acted = True
                self._lost(log)
        changed, self._changed = self._changed, set()
        for log, feeds in self._of_stream.items():
            if log.name in changed:
                acted = True
                for feed in feeds:
                    self._again(feed, None)
        return acted

    def _lost(self, log: CopyingLog) -> None:
        """Messages have left a stream."""
        gone, emptied = list(log.gone or ()), log.is_emptied
        if log.gone is not None:
            log.gone.clear()
        log.is_emptied = False
        for feed in self._of_origin.get(log, ()):
            if emptied:
                feed.forget_all()
            else:
                feed.forget((seq, subject) for seq, subject, _, _ in gone)
        subjects = None if emptied else {subject for _, subject, _, _ in gone}
        for feed in self._of_stream.get(log, ()):
            self._again(feed, subjects)

    def _again(self, feed: Feed, subjects: Iterable[str] | None) -> None:
        self._owner.use(feed.origin)
        self._owner.use(feed.stream)
        self._release(feed.origin, feed.retry(subjects))
        feed.wake()
        self._go_on(feed)

    def catch_up(self) -> None:
        """Go on with what was left; in a transaction of its own."""
        self.has_more = False
        for feeds in self._of_stream.values():
            for feed in feeds:
                self._owner.use(feed.origin)
                self._go_on(feed)

    def is_behind(self) -> bool:
        """Whether something was left that could be taken."""
        for feeds in self._of_stream.values():
            for feed in feeds:
                self._owner.use(feed.origin)
                if feed.is_behind:
                    return True
        return False

    # --- what is told, and what goes with a stream

    def infos(self, log: CopyingLog) -> list[StreamSourceInfo]:
        """Return what is known of each source of a stream, or of what it mirrors."""
        feeds = {feed.plan.source: feed for feed in self._of_stream.get(log, ())}
        for feed in feeds.values():
            self._owner.use(feed.origin)
        return [source_info(source, feeds.get(source), self._now()) for source in sources_of(log)]

    def feeds(self, log: CopyingLog) -> list[Feed]:
        """Return the feeds of a stream."""
        return self._of_stream.get(log, [])

    def origins(self, log: CopyingLog) -> list[CopyingLog]:
        """Return the streams that a stream takes from."""
        return [feed.origin for feed in self._of_stream.get(log, ())]

    def drop(self, log: CopyingLog) -> list[CopyingLog]:
        """Forget all that is kept for a stream which is deleted; return the streams that it took from."""
        self._db.execute("DELETE FROM parked WHERE source IN (SELECT id FROM sourcing WHERE stream=?)", (log.id,))
        self._db.execute("DELETE FROM sourcing WHERE stream=?", (log.id,))
        for feed in self._of_origin.get(log, ()):
            feed.forget_all()
        return self.origins(log)


def sources_of(log: CopyingLog) -> tuple[StreamSource, ...]:
    """Return what a stream takes from others: what it mirrors, or its sources."""
    return (log.config.mirror,) if log.config.mirror is not None else log.config.sources
