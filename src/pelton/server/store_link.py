"""The store of an account, for its server: what is announced in groups, and what clients wait for."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from pelton.api import (
    ApiError,
    ConfigError,
    ConsumerCreate,
    ConsumerPause,
    Incoming,
    Outgoing,
    PeltonError,
    Request,
    StoreError,
    StreamCreate,
    StreamDelete,
    StreamNames,
    StreamNotFoundError,
    StreamUpdate,
    api_error,
    rfc3339,
)
from pelton.api.events import ClientInfo
from pelton.api.times import SECOND, Duration
from pelton.engine import Engine
from pelton.engine.archives import StreamArchives
from pelton.engine.serving import Serving
from pelton.jet import Streams
from pelton.runtime import Clock, Runtime, end_tasks
from pelton.server.connection import AccountPort, ClientConnection, Published
from pelton.server.interest import RelayedInterest
from pelton.server.router import Storing
from pelton.server.standby_source import StandbySource

_log: Final = logging.getLogger("pelton.server")
ACKS: Final = "$JS.SNAPSHOT.ACK."
CHUNKS: Final = "$JS.SNAPSHOT.RESTORE."
# Each holds a file or a connection.
_MOST: Final = 64


class Transfer(Protocol):
    """One archive on its way."""

    def take(self, message: Published) -> None:
        """Take a message about it: an ack of a chunk, or a chunk."""


class TransferTable:
    """The transfers of one account that are under way, by the beginning of their subjects."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._transfers: dict[str, Transfer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def new_subject(self, prefix: str, stream: str) -> str:
        return f"{prefix}{stream}.{self._runtime.ids.new()}"

    def begin(self, subject: str, transfer: Transfer, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a transfer, which gets the messages on its subject, and those below it, until its work ends.

        Raises ApiError 10023 if too many are under way.
        """
        if len(self._transfers) >= _MOST:
            raise api_error("JSInsufficientResourcesErr")
        self._transfers[subject] = transfer

        async def run() -> None:
            try:
                await work()
            finally:
                del self._transfers[subject]

        task = self._runtime.spawn(run(), f"pelton transfers {subject}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take(self, message: Published) -> bool:
        """Pass a message on to its transfer; False if there is none."""
        subject = message.subject
        found = self._transfers.get(".".join(subject.split(".")[:5]))
        if found is None:
            return False
        found.take(message)
        return True

    async def close(self) -> None:
        await end_tasks(*self._tasks)


def info_of(client: ClientConnection, clock: Clock) -> ClientInfo:
    """Return what an audit tells of a client."""
    user, options = client.user, client.options
    return ClientInfo(
        start=rfc3339(clock.now() - int((clock.monotonic() - client.started) * SECOND)),
        rtt=Duration.of_ns(int((client.rtt or 0) * SECOND)),
        host=client.peer.rpartition(":")[0].strip("[]"),
        id=client.number,
        acc=user.account if user is not None else "",
        user=user.name if user is not None else "",
        name=options.name or "",
        lang=options.lang or "",
        ver=options.version or "",
        kind="Client",
        client_type="websocket" if client.is_bridged else "nats",
    )


_LONGEST_ANSWER_S: Final = 2.0
_MOST_REQUESTS: Final = 32
_TRENDS_BEGIN_S: Final = 30.0


class StoreLink:
    """An account's open store. ``take_acks`` takes plain acks, by their subjects, or refuses all of them.

    ``standbys`` answers those who follow it.
    """

    take_acks: Callable[[Sequence[str]], bool]
    standbys: StandbySource

    def __init__(self, engine: Engine, account: AccountPort, runtime: Runtime, domain: str) -> None:
        self.engine = engine
        self.account = account
        self.runtime = runtime
        self.serving: Serving = engine.serving()
        self.archives: StreamArchives = engine.archives()
        self.transfers: TransferTable = TransferTable(runtime)
        self.interest: RelayedInterest = RelayedInterest(self.serving, account, runtime)
        self.storing: Storing = Storing(self.serving, self.interest.after_adjusting, account.send_answers, domain)
        self.announcing: Announcing = Announcing(self.serving)
        self._requests = OpenRequests()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._trends: asyncio.Task[None] = runtime.spawn(self._keep_trends(), "pelton notes how a store went")

    async def _keep_trends(self) -> None:
        await self.runtime.clock.sleep(_TRENDS_BEGIN_S)
        # Which takes a while: first, the server is there.
        from pelton.queue.scan import keep_trends

        await keep_trends(Streams(self.engine, self.runtime))

    def spawn(self, client: ClientConnection, answer: Coroutine[Any, Any, None], name: str) -> None:
        task = self.runtime.spawn(answer, name)
        self.answers_after(task)
        self._requests.begin(client)
        task.add_done_callback(lambda _: self._requests.end(client))

    def audit(self, message: Published, subject: str, body: bytes, *, is_refused: bool) -> None:
        """Count and audit a request to ``subject`` that the store has not answered itself."""

        async def tell_audit() -> None:
            with suppress(PeltonError):
                about = self.about(message.client)
                await self.engine.audit_answer(subject, message.data, body, about, is_refused=is_refused)

        self.spawn(message.client, tell_audit(), "pelton audits a request")

    def about(self, client: ClientConnection) -> ClientInfo:
        """Return what audits and advisories tell of a client."""
        return info_of(client, self.runtime.clock)

    def answers_after(self, future: asyncio.Future[Any]) -> None:
        """Note that a request is answered when a future ends."""
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)

    async def up_to_here(self) -> None:
        """Wait until what clients have sent so far is stored, settled and answered; not for what takes very long."""
        # What came in this round is begun at its end.
        await asyncio.sleep(0)
        await self.storing.up_to_here()
        if self._unanswered:
            await asyncio.wait(self._unanswered, timeout=_LONGEST_ANSWER_S)
        # The callbacks of what ended last.
        await asyncio.sleep(0)

    def has_own_subscription(self, subject: str) -> bool:
        """Whether a client subscribes to exactly a subject, by itself: a wildcard may be for something else."""
        return any(one.subject == subject and not one.queue for one in self.account.router.subscriptions(subject))

    def poke(self) -> None:
        """Let push consumers continue: a client has room again."""
        self.serving.poke()

    def pass_on(self, message: Incoming) -> None:
        """Pass on a message that no client of this server receives: to a stream, or to other processes."""
        config = self.serving.stream_of(message.subject)
        if config is not None:
            self.storing.add(None, Outgoing(message.subject, message.data, message.headers), "", config.name)
        elif self.serving.has_others(message.subject):
            self.announcing.add(message)

    async def purge(self) -> None:
        while names := (await self.engine.call(StreamNames())).streams:
            for name in names:
                with suppress(StreamNotFoundError):
                    await self.engine.call(StreamDelete(name=name))

    async def finish(self) -> None:
        """End waiting pulls and transfers, and answer everything that clients have sent."""
        await self.up_to_here()
        await self.transfers.close()
        await self.serving.close()

    async def close(self) -> None:
        await end_tasks(self._trends)
        with suppress(PeltonError):
            await self.interest.close()
        await self.standbys.close()
        await self.engine.close()


class OpenRequests:
    """The requests that are being answered, by client: one that has too many is not heard until half of them are.

    All that it asks for in a round of the event loop would be answered in the next one, and others wait that long.
    """

    def __init__(self) -> None:
        self._open: Counter[ClientConnection] = Counter()
        self._held: set[ClientConnection] = set()

    def begin(self, client: ClientConnection) -> None:
        self._open[client] += 1
        if self._open[client] >= _MOST_REQUESTS and client not in self._held:
            self._held.add(client)
            client.hold()

    def end(self, client: ClientConnection) -> None:
        """Count a request no more: it was answered."""
        self._open[client] -= 1
        left = self._open[client]
        if not left:
            del self._open[client]
        if client in self._held and 2 * left <= _MOST_REQUESTS:
            self._held.discard(client)
            client.release()


class Announcing:
    """Messages for subscribers in other processes, one transaction a round of the event loop."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._messages: list[Incoming] = []

    def add(self, message: Incoming) -> None:
        """Announce a message at the end of this round."""
        if not self._messages:
            self._serving.soon(self._flush)
        self._messages.append(message)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        self._serving.announce(messages)


def as_api_error(request: Request[Any], error: PeltonError) -> ApiError:
    """Return what a client is told of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        if isinstance(request, StreamCreate | StreamUpdate | ConsumerCreate) and request.config.num_replicas > 1:
            return api_error("JSStreamReplicasNotSupportedErr")
        if isinstance(request, ConsumerPause):
            return api_error("JSInvalidJSONErr", err=str(error))
        return _missing(request) or api_error("JSStreamInvalidConfigF", err=str(error))
    if isinstance(error, StoreError):
        _log.warning("a request of the API was refused: %s", error)
        return api_error("JSClusterNotAvailErr")
    return api_error("JSStreamStoreFailedF", err=str(error))


def _missing(request: Request[Any]) -> ApiError | None:
    """Return that what a request is about is not there, if nothing can have its name."""
    wanted = {"StreamNotFound": getattr(request, "stream", ""), "ConsumerNotFound": getattr(request, "name", "")}
    if not wanted["StreamNotFound"]:
        wanted = {"StreamNotFound": wanted["ConsumerNotFound"]}
    codes = (f"JS{code}Err" for code, name in wanted.items() if "*" in name or ">" in name)
    return next(map(api_error, codes), None)
