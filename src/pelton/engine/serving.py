"""What a server needs of the engine beyond the port: the store as one of the places that its clients' messages go to.

A server passes messages on to its clients itself, at once. So it stores what they publish without hearing of it again,
tells other processes of what no stream takes, and hears what these publish by a few rows that cover its clients'
subscriptions (``bus.py``). Its clients' pulls stand until they are filled (``delivery/pulls.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from pelton.api import (
    AckOp,
    ConsumerConfig,
    Incoming,
    Outgoing,
    PeltonError,
    PubAck,
    StreamConfig,
    StreamSource,
    api_error,
)
from pelton.engine.bus import RELAYED, Subscriber
from pelton.engine.host import Host, public_error
from pelton.engine.pulls import Pulls
from pelton.engine.pushes import Pushes
from pelton.engine.session import Session
from pelton.engine.submissions import Settling, Submissions, make_ready, store
from pelton.sourcing import RemoteLink
from pelton.storage import Committer, Fault, Work

T = TypeVar("T")
INBOXES: Final = "_INBOX"
FOR_HUB: Final = "$LDS.hub"
"""The subject of a row by which a server shows others that some of its rows are what a hub wants."""
Answered = Callable[[int, Sequence[PubAck | PeltonError]], None]
"""Called with the position of the first answer, and answers in the order of the messages."""


class Serving:
    """The engine for a server."""

    def __init__(
        self, host: Host, committer: Committer, pulls: Pulls, pushes: Pushes, submissions: Submissions
    ) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._committer = committer
        self.pulls: Pulls = pulls
        self._pushes = pushes
        self._submissions = submissions
        self._bus = host.session.bus
        self._registry = host.session.registry
        self._soon: list[Callable[[], None]] = []
        self._own_inboxes = ""

    # --- which stream takes a message, and who else subscribes to it

    def stream_of(self, subject: str) -> StreamConfig | None:
        """Return the configuration of the stream that takes a subject, or None."""
        log = self._host.session.registry.routes.find(subject)
        return None if log is None else log.config

    def answering_directly(self, stream: str) -> str:
        """Return the name of the stream that answers direct gets of a stream: its own, or that of a mirror.

        Raises StreamNotFoundError, DirectGetDisabledError.
        """
        return self._registry.direct(stream).name

    @property
    def has_republishers(self) -> bool:
        """Whether any stream republishes."""
        return bool(self._registry.republishers)

    def has_others(self, subject: str) -> bool:
        """Whether anybody subscribes to a subject, other than this server's clients."""
        return self._bus.has_subscriptions and self._bus.has_others(subject)

    def others(self) -> list[tuple[str, str]]:
        """Return what programs, and clients of other servers, subscribe to: filters, each with its group or "".

        All inboxes of a server have one row: who asks tells its own. What a server relays that has a hub itself may be
        what that has asked for: only the inboxes of its own programs are told.
        """
        if not self._bus.has_subscriptions:
            return []
        own = self.own_inboxes()
        rows = self._bus.others()
        with_hub = {row.owner for row in rows if row.subject == FOR_HUB}
        return [
            (row.subject, "" if row.queue == RELAYED else row.queue)
            for row in rows
            if row.queue != RELAYED
            or row.subject.startswith(own)
            or not (row.owner in with_hub or row.subject.startswith(INBOXES))
        ]

    def own_inboxes(self) -> str:
        """Return how the inboxes of programs begin that speak NATS with a server in their own process."""
        if not self._own_inboxes:
            self._own_inboxes = f"_INBOX_{self.store_id()}"
        return self._own_inboxes

    def store_id(self) -> str:
        """Return the id that the store got when it was made."""
        return str(self._host.session.db.value("SELECT value FROM meta WHERE key='uuid'"))

    def reaches(self, subjects: str) -> bool:
        """Whether a stream, or anybody but this server's clients, may take a subject that matches a filter."""
        return bool(self._registry.routes.overlapping(subjects)) or self._bus.may_reach_others(subjects)

    def consumer(self, stream: str, consumer: str) -> ConsumerConfig | None:
        log = self._registry.consumers.by_name.get((stream, consumer))
        return None if log is None else log.config

    @property
    def configs(self) -> tuple[list[StreamConfig], list[ConsumerConfig]]:
        streams, consumers = self._registry.streams.values(), self._registry.consumers.by_name.values()
        return [one.config for one in streams], [one.config for one in consumers]

    def interest(self) -> tuple[set[str], dict[str, bool]]:
        """Return the subjects of all streams, and ``STREAM.CONSUMER`` of each consumer with whether it pushes."""
        consumers = self._registry.consumers
        paths = {".".join(key): key in consumers.pushed for key in consumers.by_name}
        return {subject for one in self._registry.streams.values() for subject in one.config.subjects}, paths

    def deliver_subjects(self) -> dict[str, str]:
        """Return the deliver subjects of push consumers, each with its group or an empty text."""
        consumers = self._host.session.registry.consumers.pushed.values()
        return {one.config.deliver_subject: one.config.deliver_group for one in consumers}

    @property
    def version(self) -> int:
        """A number that changes when a stream or consumer is made, changed or deleted."""
        return self._host.session.registry.version

    @property
    def stamp(self) -> tuple[int, int]:
        """A value that changes when a subject may lead elsewhere: streams, or subscriptions of others, have changed."""
        return self._registry.version, self._bus.version

    def poke(self) -> None:
        """Let push consumers and pulls continue that wait for a client's room."""
        self._pushes.poke()
        self.pulls.poke()

    # --- what is taken from other JetStreams

    @property
    def remote_sources(self) -> list[tuple[str, StreamSource]]:
        """The sources and mirrors whose origin is elsewhere, each with the name of the stream that takes from it."""
        return self._registry.source_graph.remotes

    async def at_source(self, stream: str, source: StreamSource, do: Callable[[RemoteLink], T], *, durable: bool) -> T:
        """Return what ``do`` returns with the link of such a source, in a transaction; ``durable``: it is on disk.

        Raises ApiError 10059 if the stream takes from there no more, or is gone.
        """

        def call() -> T:
            log = self._registry.stream(stream)
            link = self._registry.source_graph.remote(log, source)
            if link is None:
                raise api_error("JSStreamNotFoundErr", stream=stream)
            make_ready(self._host.session, log, self._host.session.now())
            return do(link)

        found: T = await self._host.stage(call, durable=durable)
        return found

    def hear(self, stream: str, source: StreamSource) -> None:
        """Note that the origin of such a source is there."""
        log = self._registry.streams.get(stream)
        link = None if log is None else self._registry.source_graph.remote(log, source)
        if link is not None:
            link.heard = self._host.session.now()

    # --- messages

    def store(self, messages: Sequence[Outgoing], answered: Answered) -> None:
        """Store messages in order, in one transaction if possible; each is answered when it is durable, or refused.

        They reach subscribers of other processes, and no client of this server.
        """
        work = _StoreWork(self._host.session, messages, 0, answered)
        try:
            self._committer.run_now(work)
        except Fault as fault:
            work.fail(public_error(fault))

    def announce(self, messages: Sequence[Incoming]) -> None:
        """Let subscribers of other processes receive messages; store nothing."""

        def announce() -> None:
            self._bus.is_routed = True
            try:
                for message in messages:
                    self._bus.deliver(message.subject, (message,))
            finally:
                self._bus.is_routed = False

        self._host.stage_quietly(announce)

    def ack(
        self, stream: str, consumer: str, acks: Sequence[AckOp], *, durable: bool
    ) -> asyncio.Future[list[PeltonError | None]]:
        """Acknowledge deliveries; the future ends when that is stored, and on disk if it is to be ``durable``."""
        future: asyncio.Future[list[PeltonError | None]] = self._loop.create_future()
        self._submissions.settle((stream, consumer), Settling(acks, future, durable=durable))
        return future

    def soon(self, call: Callable[[], None]) -> None:
        """Call back at the end of this round of the event loop, or when :meth:`hurry` is called."""
        if not self._soon:
            self._loop.call_soon(self.hurry)
        self._soon.append(call)

    def hurry(self) -> None:
        """Call back now: nothing more is to come in this round."""
        calls, self._soon = self._soon, []
        for call in calls:
            call()

    async def change(self, joins: Sequence[tuple[str, str, Subscriber]], leaves: Sequence[int]) -> list[int]:
        """Subscribe to subjects with queue groups, and unsubscribe; returns the numbers of the new subscriptions."""

        def change() -> list[int]:
            made = [self._bus.join(*each) for each in joins]
            for number in leaves:
                self._bus.leave(number)
            return made

        numbers: list[int] = await self._host.stage(change, durable=False)
        return numbers

    async def close(self) -> None:
        """End the pulls that stand."""
        await self.pulls.close()


class _StoreWork:
    """Messages of a server's clients, for which the server has answers to send."""

    durable = True

    def __init__(self, session: Session, messages: Sequence[Outgoing], first: int, answered: Answered) -> None:
        self._session = session
        self._messages = messages
        self._first = first
        self._answered = answered
        self._results: list[PubAck | PeltonError] = []

    @property
    def size(self) -> int:
        return len(self._messages)

    def run(self) -> None:
        bus = self._session.bus
        bus.is_routed = True
        try:
            self._results = store(self._session, self._messages, "apart")
        finally:
            bus.is_routed = False

    def finish(self) -> None:
        self._answered(self._first, self._results)

    def fail(self, error: Exception) -> None:
        found = public_error(error)
        refused = found if isinstance(found, PeltonError) else api_error("JSStreamStoreFailedF", err=str(found))
        self._answered(self._first, [refused] * len(self._messages))

    def pieces(self) -> list[Work]:
        if len(self._messages) == 1:
            return [self]
        alone = partial(_StoreWork, self._session)
        return [alone((one,), self._first + index, self._answered) for index, one in enumerate(self._messages)]
