"""All links of a store: which streams take from which, and when each link continues.

A link continues in the same transaction that gives it work: its origin stored messages, its stream removed some,
or it was created or changed. Chains need nothing more: a link stores into the origin of the next one. They
end, because no stream takes from itself, directly or indirectly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from pelton.api import ApiError, SourceConsumer, StreamSource, api_error
from pelton.api.info import ErrorBody, StreamSourceInfo
from pelton.api.times import NEVER, Duration
from pelton.sourcing.link import Consumed, RemoteLink, SourceLink
from pelton.sourcing.plan import Plan, origins_of
from pelton.storage import Database, Removed
from pelton.streams import StreamLog
from pelton.subjects import Draw

_problem: Final = msgspec.json.Decoder(ErrorBody).decode


def source_info(source: StreamSource, link: SourceLink | RemoteLink | None, now: int) -> StreamSourceInfo:
    """Return the state of a source; ``link`` is None if its origin does not exist."""
    info = StreamSourceInfo(
        name=source.name,
        external=source.external,
        filter_subject=source.filter_subject,
        subject_transforms=source.subject_transforms,
    )
    if link is None:
        info.error = _body(api_error("JSStreamNotFoundErr", stream=source.name))
        return info
    if isinstance(link, SourceLink) and link.consumed is not None:
        problem = link.consumed.problem("Source" if link.stream.config.mirror is None else "Mirror")
        if problem is not None:
            info.error = _body(problem)
            return info
    position = link.position
    if not position.load():
        return info
    info.lag = position.parked + (_ahead(link) if isinstance(link, SourceLink) else 0)
    active = max(position.active, link.heard) if isinstance(link, RemoteLink) else position.active
    if active:
        info.active = Duration.of_ns(max(now - active, 0))
    if link.stream.config.mirror is None:
        info.seq = position.taken
    if position.problem:
        info.error = _problem(position.problem)
    return info


def _ahead(link: SourceLink) -> int:
    """Return how many messages the origin, or the consumer that is taken from, has for a source."""
    if link.consumed is not None:
        return link.consumed.num_pending()
    origin, seq = link.origin, link.position.seq
    return origin.table.count(seq + 1, origin.state.last, link.plan.condition) if seq < origin.state.last else 0


def _body(error: ApiError) -> ErrorBody:
    return ErrorBody(code=error.code, err_code=error.err_code, description=error.description)


class Owner(Protocol):
    """The owner of the streams."""

    def use(self, log: StreamLog, /) -> StreamLog:
        """Return a stream with fresh state, to be flushed when the transaction ends."""

    def release(self, log: StreamLog, sequences: list[int], /) -> None:
        """Note that messages of a stream that keeps them for others were taken: remove those no longer needed."""

    def consumer_of(self, origin: StreamLog, consumer: SourceConsumer, /) -> Consumed:
        """Return the consumer from which a source takes."""


class SourceGraph:
    """The links between the streams of ``owner``."""

    def __init__(self, database: Database, owner: Owner, now: Callable[[], int], draw: Draw) -> None:
        self._db = database
        self._owner = owner
        self._now = now
        self._draw = draw
        self._of_stream: dict[StreamLog, list[SourceLink]] = {}
        self._of_origin: dict[StreamLog, list[SourceLink]] = {}
        # Those that take from elsewhere.
        self._remote: dict[tuple[StreamLog, StreamSource], RemoteLink] = {}
        self._logs: dict[int, StreamLog] = {}
        # The links of the streams that others take from, if any.
        self._named: set[str] = set()
        # Whether any stream takes from another.
        self.has_links: bool = False
        # Row ids of the streams that take from others, or others from them.
        self.watched: set[int] = set()
        # Streams whose links were created or changed in this transaction.
        self._changed: set[str] = set()
        # Whether messages are left for the next transaction.
        self._has_more = False
        # Whether a consumer that is taken from waits for a time.
        self._is_timed = False

    # --- the links

    def rebuild(self, streams: Mapping[str, StreamLog], takers: Iterable[str]) -> None:
        """Rebuild the links after a change of the streams; ``takers`` are those that take from others."""
        self._of_stream, self._of_origin = {}, {}
        logs = [streams[name] for name in takers]
        self._named = {name for log in logs for name in origins_of(log.config)}
        remote, self._remote = self._remote, {}
        for log in logs:
            for source in sources_of(log):
                if source.external is not None:
                    there = remote.get((log, source))
                    if there is None or there.mirrors != (log.config.mirror is not None):
                        there = RemoteLink(self._db, log, Plan(source, self._draw), self._now)
                    self._remote[log, source] = there
                elif (origin := streams.get(source.name)) is not None:
                    consumed = None if source.consumer is None else self._owner.consumer_of(origin, source.consumer)
                    self._connect(SourceLink(self._db, log, origin, Plan(source, self._draw), self._now, consumed))
        self.has_links = bool(self._of_stream)
        self._logs = {log.id: log for log in (*self._of_stream, *self._of_origin)}
        self.watched.clear()
        self.watched.update(self._logs)

    def remote(self, log: StreamLog, source: StreamSource) -> RemoteLink | None:
        """Return the link of a source, or mirror, of a stream that is elsewhere; None if it is there no more."""
        return self._remote.get((log, source))

    @property
    def remotes(self) -> list[tuple[str, StreamSource]]:
        """The sources and mirrors whose origin is elsewhere, each with the name of the stream that takes from it."""
        return [(log.name, source) for log, source in self._remote]

    def is_origin(self, name: str) -> bool:
        """Whether others take from a stream, or would; as of the last :meth:`rebuild`."""
        return name in self._named

    def _connect(self, link: SourceLink) -> None:
        self._of_stream.setdefault(link.stream, []).append(link)
        self._of_origin.setdefault(link.origin, []).append(link)

    def takers(self, origin: StreamLog) -> list[SourceLink]:
        """Return the links that take from a stream by themselves, and not from a consumer of it."""
        return [link for link in self._of_origin.get(origin, ()) if link.consumed is None]

    def is_consumed(self, origin: StreamLog, consumer: str) -> bool:
        links = self._of_origin.get(origin, ())
        return any(link.consumed is not None and link.consumed.is_of(consumer) for link in links)

    def consumers_changed(self, origin: StreamLog) -> None:
        """Note that a consumer of a stream was created, changed, reset or deleted: some link may go on."""
        self._changed.update(link.stream.name for link in self._of_origin.get(origin, ()) if link.consumed is not None)

    def is_ticking(self, log: StreamLog) -> bool:
        """Whether expiring messages of a stream make space for those it takes, so that a timer is needed."""
        return log in self._of_stream and bool(log.config.max_age or log.state.is_timed)

    def ticking(self) -> list[StreamLog]:
        return [log for log in self._of_stream if self.is_ticking(log)]

    def note_change(self, stream: str) -> None:
        """Note that a stream was created or changed: its links continue before this transaction ends."""
        if self._of_stream:
            self._changed.add(stream)

    def invalidate(self) -> None:
        """Drop cached state: other processes have written, or the transaction was rolled back."""
        for links in self._of_stream.values():
            for link in links:
                link.position.is_fresh = False
        for remote in self._remote.values():
            remote.position.is_fresh = False

    def roll_back(self) -> None:
        self.invalidate()
        self._changed.clear()
        self._has_more = False

    def take_left(self) -> tuple[bool, bool]:
        """Return what the committed transaction has left, and reset that: messages, and a consumer that waits."""
        left = self._has_more, self._is_timed
        self._has_more = self._is_timed = False
        return left

    # --- continuing

    def on_write(self, stream: int) -> None:
        """Continue the links that take from a watched stream: it was written, and its limits are not applied yet."""
        for link in self._of_origin.get(self._logs[stream], ()):
            self._go_on(link)

    def _go_on(self, link: SourceLink) -> None:
        self._owner.use(link.stream).advance(self._now())
        self._release(link, link.go_on())
        self._has_more = self._has_more or link.is_behind
        self._is_timed = self._is_timed or (link.consumed is not None and link.consumed.next_due() < NEVER)

    def _release(self, link: SourceLink, taken: list[int]) -> None:
        origin = link.origin
        if not taken:
            return
        if link.consumed is not None:
            link.consumed.settle(taken)
        elif origin.config.retention == "workqueue":
            # Its consumers may still want them.
            origin.remover.remove(taken)
        elif origin.config.retention == "interest":
            self._owner.release(origin, taken)

    def settle(self) -> bool:
        """Do the work caused by this transaction's changes; return whether there was any: then call it again."""
        acted = False
        for log in self._logs.values():
            removed, emptied = log.state.effects.take_removed()
            if removed or emptied:
                acted = True
                self._on_removal(log, None if emptied else removed)
        changed, self._changed = self._changed, set()
        for log, links in self._of_stream.items():
            if log.name in changed:
                acted = True
                for link in links:
                    self._again(link, None)
        return acted

    def _on_removal(self, log: StreamLog, removed: list[Removed] | None) -> None:
        """Handle the removal of messages from a stream; None: all of them."""
        for link in self._of_origin.get(log, ()):
            if removed is None:
                link.forget_all()
            else:
                link.forget(removed)
        subjects = None if removed is None else {one.subject for one in removed}
        for link in self._of_stream.get(log, ()):
            self._again(link, subjects)

    def _again(self, link: SourceLink, subjects: Iterable[str] | None) -> None:
        self._owner.use(link.origin)
        self._owner.use(link.stream)
        self._release(link, link.retry(subjects))
        link.wake()
        self._go_on(link)

    def catch_up(self) -> None:
        """Continue with the remaining messages, in a separate transaction."""
        self._has_more = False
        for links in self._of_stream.values():
            for link in links:
                self._owner.use(link.origin)
                self._go_on(link)

    def is_behind(self) -> bool:
        """Whether remaining messages could be taken."""
        for links in self._of_stream.values():
            for link in links:
                self._owner.use(link.origin)
                if link.is_behind:
                    return True
        return False

    def next_due(self) -> int:
        """Return when time alone lets a link go on: its consumer is paused or replays; ``NEVER`` if it does not."""
        links = [link for links in self._of_stream.values() for link in links]
        return min((link.consumed.next_due() for link in links if link.consumed is not None), default=NEVER)

    # --- infos, and deletion

    def infos(self, log: StreamLog) -> list[StreamSourceInfo]:
        """Return the state of each source of a stream, or of its mirror."""
        links = {link.plan.source: link for link in self._of_stream.get(log, ())}
        for link in links.values():
            self._owner.use(link.origin)
        now, remote = self._now(), self._remote
        return [source_info(one, links.get(one) or remote.get((log, one)), now) for one in sources_of(log)]

    def links(self, log: StreamLog) -> list[SourceLink]:
        return self._of_stream.get(log, [])

    def origins(self, log: StreamLog) -> list[StreamLog]:
        return [link.origin for link in self._of_stream.get(log, ())]

    def drop(self, log: StreamLog) -> list[StreamLog]:
        """Delete the rows of a deleted stream; return the streams that it took from."""
        self._db.execute("DELETE FROM parked WHERE source IN (SELECT id FROM sourcing WHERE stream=?)", (log.id,))
        self._db.execute("DELETE FROM sourcing WHERE stream=?", (log.id,))
        for link in self._of_origin.get(log, ()):
            link.forget_all()
        return self.origins(log)


def sources_of(log: StreamLog) -> tuple[StreamSource, ...]:
    return (log.config.mirror,) if log.config.mirror is not None else log.config.sources
