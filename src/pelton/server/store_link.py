"""The store of an account, for its server: what is announced in groups, what clients wait for, what standbys copy.

**A store hands out its file and its log to followers on other hosts, which keep standbys of it.** A follower's
*session* has the transactions that a follower on this host would hold (``storage/standby.py``). They keep the log from
beginning anew, so a session of which nothing was heard for some seconds ends. A request is answered on a thread, one
after the other in each session. What is handed out is all that the account's store holds, so only logins that may do
everything in the account may ask, and those whose permissions name the subject.

A store that was told that its standby has taken its place ends for its server, which would let go of all clients: also
of the one that copies the rest. So that waits until its sessions have ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

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
from pelton.runtime import Clock, Runtime, end_tasks, on_thread
from pelton.server.connection import AccountPort, ClientConnection, Published
from pelton.server.interest import RelayedInterest
from pelton.server.router import Storing
from pelton.storage import Fault, ReadOnlyDatabase
from pelton.storage.store_file import admitting

if TYPE_CHECKING:
    from pelton.moving.served_log import StandbyReply, StandbyRequest
    from pelton.storage.standby import LogPosition, SourceLog

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


# --- what standbys on other hosts copy

_SUBJECT: Final = "$PELTON.STANDBY"
_OWN: Final = "$PELTON."
_MOST_FOLLOWERS: Final = 8
_IDLE_S: Final = 15.0
_LOOK_S: Final = 1.0
_FENCED_S: Final = 3.0
_REST: Final = 4096
_PIECE: Final = 1 << 20
_DENIED: Final = (
    f"a standby holds all of the account's store: allow the login to do everything, or to publish to {_SUBJECT} by name"
)


Access = Callable[[], AbstractContextManager[None]]


class _Session:
    """What is held for one follower."""

    def __init__(self, log: SourceLog, client: ClientConnection, access: Access) -> None:
        self.log = log
        self.client = client
        self.access = access
        self.lock = asyncio.Lock()
        self.used = 0.0
        self._turn: tuple[AbstractContextManager[LogPosition], LogPosition] | None = None

    def begin_turn(self, at: LogPosition | None) -> tuple[LogPosition, bool]:
        """Return where the log ends now, and whether the follower is there."""
        self.end_turn(is_copied=False)
        turn = self.log.turn()
        end = turn.__enter__()
        self._turn = turn, end
        if is_done := at == end:
            self.end_turn(is_copied=True)
        return end, is_done

    def end_turn(self, *, is_copied: bool) -> None:
        if self._turn is None:
            return
        (turn, _), self._turn = self._turn, None
        if is_copied:
            turn.__exit__(None, None, None)
        else:
            again = Fault("io", self.log.path, "the follower has not copied what it was given")
            with suppress(Fault):
                turn.__exit__(Fault, again, None)

    def close(self) -> None:
        self.end_turn(is_copied=False)
        self.log.close()


class StandbySource:
    """Answers the followers of the store at ``path``, encrypted with ``key`` or not; a service of its account."""

    def __init__(
        self, path: str, key: bytes | None, account: AccountPort, runtime: Runtime, max_payload: int = 1 << 20
    ) -> None:
        self._path, self._key = os.path.realpath(path), key
        self._account, self._runtime = account, runtime
        self._chunk = max(max_payload - _REST, _REST)
        self._sessions: dict[str, _Session] = {}
        self._fenced: float | None = None
        self._is_watching = self._is_closed = False

    def take(self, message: Published) -> bool:
        """Answer a request; False if it is none of a follower."""
        if message.subject != _SUBJECT:
            return False
        self._runtime.spawn(self._take(message), "pelton answers the follower of a standby")
        return True

    async def _take(self, message: Published) -> None:
        from pelton.moving.served_log import StandbyReply, StandbyRequest

        try:
            request = msgspec.msgpack.decode(message.data, type=StandbyRequest)
            if self._may_follow(message.client):
                reply = await self._answer(request, message.client)
            else:
                reply = StandbyReply(kind="denied", detail=_DENIED)
        except msgspec.MsgspecError:
            reply = StandbyReply(kind="settings", detail="the request is of another version of Pelton")
        except Fault as fault:
            reply = StandbyReply(kind=fault.kind, detail=fault.detail)
        except OSError as error:
            reply = StandbyReply(kind="io", detail=str(error))
        self._account.answer(message.reply, None, msgspec.msgpack.encode(reply))

    def _may_follow(self, client: ClientConnection) -> bool:
        """Whether a client is of this account, and may do everything, or this by name."""
        if client.account is not self._account or not isinstance(client, ClientConnection):
            return False
        permissions = client.rights.permissions
        if permissions is None:
            return True
        allowed = permissions.rules.publish.allow if permissions.rules is not None else None
        return client.may_publish(_SUBJECT) and any(rule.startswith(_OWN) for rule in allowed or ())

    async def _answer(self, request: StandbyRequest, client: ClientConnection) -> StandbyReply:
        from pelton.moving.served_log import StandbyReply

        if request.verb == "open":
            return await self._open(
                client, "" if request.is_promoting else request.by, is_promoting=request.is_promoting
            )
        if request.verb in ("fence", "unfence", "last"):
            return StandbyReply(last_seqs=await on_thread(lambda _: self._tell(request)))
        session = self._sessions.get(request.session)
        if session is None or session.client is not client:
            raise Fault("io", self._path, "its server has let go of this follower, which begins again")
        session.used = self._runtime.clock.monotonic()
        if request.verb == "close":
            await self._end(request.session)
            return StandbyReply()
        if request.verb == "alive":
            return StandbyReply()
        async with session.lock:
            with session.access():
                return await on_thread(lambda _: self._carry_out(session, request))

    async def _open(self, client: ClientConnection, by: str, *, is_promoting: bool) -> StandbyReply:
        from pelton.moving.served_log import CHUNK, StandbyReply
        from pelton.storage.standby import SourceLog

        if len(self._sessions) >= _MOST_FOLLOWERS or self._is_closed:
            raise Fault("busy", self._path, f"{_MOST_FOLLOWERS} followers are connected to its server: end one")

        # A store that was just replaced is copied to its end.
        access: Access = partial(admitting, self._path) if is_promoting else nullcontext

        def open_log() -> SourceLog:
            with access():
                return SourceLog(self._path, self._key, by, self._runtime.clock.now)

        log = await on_thread(lambda _: open_log(), SourceLog.close)
        session, name = _Session(log, client, access), self._runtime.ids.new()
        session.used = self._runtime.clock.monotonic()
        self._sessions[name] = session
        self._watch()
        _log.info("client %s follows store %s", client.peer, self._path, extra={"store": self._path})
        return StandbyReply(session=name, uuid=log.uuid, mode=log.mode, chunk=min(CHUNK, self._chunk))

    def _tell(self, request: StandbyRequest) -> int:
        from pelton.storage.standby import fence, sum_of_last_seqs, unfence

        if request.verb == "fence":
            self._fenced = self._runtime.clock.monotonic()
            fence(self._path, self._key, request.by)
        elif request.verb == "unfence":
            unfence(self._path, self._key)
        with closing(ReadOnlyDatabase(self._path, key=self._key)) as store, store.reading():
            return sum_of_last_seqs(store)

    def _carry_out(self, session: _Session, request: StandbyRequest) -> StandbyReply:
        from pelton.moving.served_log import StandbyReply
        from pelton.storage.standby import LogPosition

        log, is_done, data = session.log, False, b""
        end = LogPosition(b"", 0)
        if request.verb == "turn":
            at = LogPosition(request.header, request.frames) if request.is_copied else None
            end, is_done = session.begin_turn(at)
        elif request.verb == "done":
            session.end_turn(is_copied=request.is_copied)
        elif request.verb == "copied":
            log.note_copied(request.by)
        elif request.verb == "end":
            end = log.end()
        elif request.verb == "digest":
            data = _digest(log, request.size)
        else:
            read = log.read_log if request.verb == "log" else log.read_file
            data = read(request.offset, min(request.size, self._chunk))
        return StandbyReply(
            header=end.header,
            frames=end.frames,
            last_seqs=log.last_seqs,
            is_done=is_done,
            data=data,
            crc=zlib.crc32(data),
        )

    async def _end(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            async with session.lock:
                await on_thread(lambda _: session.close())

    # --- what time ends

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._runtime.spawn(self._end_idle(), "pelton ends the sessions of standbys that are silent")

    async def _end_idle(self) -> None:
        while self._sessions:
            await self._runtime.clock.sleep(_LOOK_S)
            now = self._runtime.clock.monotonic()
            for name, session in list(self._sessions.items()):
                is_gone = session.client.state == "closed"
                if is_gone or (now - session.used > _IDLE_S and not session.lock.locked()):
                    _log.info("follower %s is gone", session.client.peer, extra={"store": self._path})
                    await self._end(name)
        self._is_watching = False

    def after_copying(self, then: Callable[[], None]) -> None:
        """Call ``then`` when nobody copies the rest of a store that was just replaced; else now."""
        since = self._fenced
        is_fresh = since is not None and self._runtime.clock.monotonic() - since < _FENCED_S
        if since is not None and not self._is_closed and (is_fresh or self._sessions):
            self._runtime.clock.call_later(_LOOK_S / 4, lambda: self.after_copying(then))
        else:
            then()

    async def close(self) -> None:
        """End all sessions."""
        self._is_closed = True
        for name in list(self._sessions):
            await self._end(name)


def _digest(log: SourceLog, size: int) -> bytes:
    from pelton.moving.served_log import DIGEST_SIZE

    digest, offset = blake2b(digest_size=DIGEST_SIZE), 0
    while offset < size and (piece := log.read_log(offset, min(_PIECE, size - offset))):
        digest.update(piece)
        offset += len(piece)
    return digest.digest() if offset == size else b""


# --- the store itself


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
