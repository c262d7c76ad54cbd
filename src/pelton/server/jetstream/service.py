"""The JetStream API of an account: which part answers a message on ``$JS.>``.

**Acks of clients: those of one round of the event loop in one group for each consumer (ADR-15).** A server answers
every ack when it is durable, also one that comes too late, as NATS does: what it has settled then is nothing.

**Direct gets of clients (ADR-31).** A batch is read and sent in pages, as the client keeps up: all of it may be larger
than what may wait for a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from pelton.api import (
    AckOp,
    ApiError,
    Delivered,
    DirectGetDisabledError,
    DirectReply,
    PeltonError,
    StreamNotFoundError,
    api_error,
    headers,
)
from pelton.api.codec import encode_failure
from pelton.api.direct import MAX_BYTES, WireGet, direct_frames, direct_refusal, direct_request
from pelton.api.message import (
    BATCH_COMPLETED,
    EXPIRED,
    HEARTBEAT,
    PIN_TAKEN,
    TOO_LARGE,
    NextRequest,
    PullStatus,
    ack_target,
    ack_verdict,
    decode_next,
    long_ack_prefix,
)
from pelton.engine.serving import Serving
from pelton.runtime import Runtime
from pelton.server.clients import Published
from pelton.server.jetstream.link import Send, StoreLink
from pelton.server.jetstream.verbs import ApiVerbs, ReplyCompletion
from pelton.wire import status_block

TRANSFERS: Final = "$JS.SNAPSHOT."
_SNAPSHOT: Final = "STREAM.SNAPSHOT."
_RESTORE: Final = "STREAM.RESTORE."
_KINDS: Final = {_SNAPSHOT: "stream_snapshot", _RESTORE: "stream_restore"}
_MISSING: Final = "archives need cramjam and crc32c: pip install 'pelton[serve]'"


class _Verb(Protocol):
    def take(self, stream: str, message: Published) -> bool: ...


class ArchiveService:
    """Answers the requests of one account about archives."""

    def __init__(
        self, link: StoreLink, send: Send, answer: Callable[[str, bytes | None, bytes], None], runtime: Runtime
    ) -> None:
        self._link = link
        self._send = send
        self._answer = answer
        self._runtime = runtime
        self._verbs: dict[str, _Verb] = {}

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; False if it is another one."""
        verb = next((verb for verb in _KINDS if path.startswith(verb)), "")
        if not verb:
            return False
        try:
            self._load()
        except ModuleNotFoundError:
            error = api_error("JSStreamGeneralErrorF", err=_MISSING)
            self._answer(message.reply, None, encode_failure(_KINDS[verb], error))
            return True
        return self._verbs[verb].take(path[len(verb) :], message)

    def take_transfer(self, message: Published) -> bool:
        """Take a chunk of an archive, or the ack of one; False if none is under way."""
        return self._link.transfers.take(message)

    def _load(self) -> None:
        if self._verbs:
            return
        from pelton.server.jetstream.archives import RestoreService, SnapshotService

        transfers = self._link.transfers
        self._verbs = {
            _SNAPSHOT: SnapshotService(self._link, transfers, self._send, self._answer, self._runtime),
            _RESTORE: RestoreService(self._link, transfers, self._answer, self._runtime),
        }


_Key = tuple[str, str]


class ClientAcks:
    """The acks of one account's clients.

    ``long_prefix`` is how the longer form of their subjects begins, and ``pull`` makes the pull that an ack with
    ``+NXT`` asks for.
    """

    def __init__(
        self,
        link: StoreLink,
        answer: Callable[[str, bytes | None, bytes], None],
        pull: Callable[[str, str, NextRequest, str], None],
        long_prefix: str,
    ) -> None:
        self._link = link
        self._serving = link.serving
        self._answer = answer
        self._pull = pull
        self._long_prefix = long_prefix
        self._waiting: dict[_Key, list[tuple[AckOp, str]]] = {}

    def take(self, message: Published) -> bool:
        """Take an ack; False if no consumer does."""
        target = ack_target(message.subject, self._long_prefix)
        if target is None:
            return False
        config = self._serving.consumer(target.stream, target.consumer)
        if config is None or config.ack_policy in ("none", "flow_control"):
            return False
        reply = message.reply
        try:
            verdict = ack_verdict(message.data)
        except ApiError as error:
            self._answer(reply, status_block(error.code, error.description), b"")
            return True
        ack = verdict.of(target)
        if ack is None:
            self._answer(reply, None, b"")
            return True
        following = verdict.following
        self._add((target.stream, target.consumer), ack, "" if following is not None else reply)
        if following is not None and reply:
            self._flush()
            self._pull(target.stream, target.consumer, following, reply)
        return True

    def _add(self, key: _Key, ack: AckOp, reply: str) -> None:
        if not self._waiting:
            self._serving.soon(self._flush)
        self._waiting.setdefault(key, []).append((ack, reply))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (stream, consumer), acks in waiting.items():
            replies = [reply for _, reply in acks if reply]
            try:
                done = self._serving.ack(stream, consumer, [ack for ack, _ in acks])
            except PeltonError:
                # The store is closed, or has failed: what is not answered is redelivered.
                continue
            self._link.answers_after(done)
            done.add_done_callback(lambda done, replies=replies: self._settled(done, replies))  # type: ignore[misc]  # a default argument

    def _settled(self, done: asyncio.Future[list[PeltonError | None]], replies: list[str]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        for reply in replies:
            self._answer(reply, None, b"")


_PAGE: Final = 1 << 20
_PAUSE_S: Final = 0.005


class DirectGetService:
    """Answers direct gets."""

    def __init__(
        self,
        link: StoreLink,
        answer: Callable[[str, bytes | None, bytes], None],
        receives: Callable[[str], bool],
        has_room: Callable[[str], bool],
        runtime: Runtime,
    ) -> None:
        self._link = link
        self._answer = answer
        self._receives = receives
        self._has_room = has_room
        self._runtime = runtime

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; ``path`` is the stream, and the subject whose last message is wanted."""
        stream, _, subject = path.partition(".")
        if not message.reply:
            return True
        try:
            request = direct_request(subject, message.data)
        except ApiError as error:
            self._refuse(message.reply, error)
            return True
        self._link.spawn(message.client, self._get(stream, request, message), "pelton answers a direct get")
        return True

    async def _get(self, stream: str, request: WireGet, message: Published) -> None:
        reply, subject = message.reply, message.subject
        try:
            await self._link.storing.up_to_here()
            # A mirror of it may answer: this is told, and is no request to the mirror itself.
            name = self._link.serving.answering_directly(stream)
            if request.batch > 0 or request.multi_last:
                await self._get_pages(stream, name, request, reply)
            else:
                self._send(reply, name, request, await self._link.engine.direct_get(stream, request))
        except (StreamNotFoundError, DirectGetDisabledError):
            self._answer(reply, status_block(503, Nats_Subject=subject), b"")
        except PeltonError as error:
            self._refuse(reply, error, request)

    async def _get_pages(self, stream: str, name: str, request: WireGet, reply: str) -> None:
        """Read and send a batch, page by page; it ends where a single reply would have."""
        left, last = request.max_bytes or MAX_BYTES, 0
        while True:
            page = replace(request, max_bytes=min(left, _PAGE))
            found = await self._link.engine.direct_get(stream, page)
            left -= sum(len(one.subject.encode()) + len(one.hdrs) + len(one.data) for one in found.messages)
            batch = request.batch - len(found.messages) if request.batch else 0
            is_over = left <= 0 or not found.num_pending or (request.batch > 0 and batch <= 0) or not found.messages
            self._send(reply, name, request, found, after=last, is_over=is_over)
            if is_over:
                return
            last = found.last_seq
            up_to = found.up_to_seq if request.multi_last else 0
            following = replace(request, seq=last + 1, batch=batch, start_time="")
            request = replace(following, up_to_seq=up_to, up_to_time="") if request.multi_last else following
            await self._room(reply)

    async def _room(self, reply: str) -> None:
        """Wait until the client has read most of what it was sent; if it is gone, nothing more is sent anyway."""
        while self._receives(reply) and not self._has_room(reply):
            await self._runtime.clock.sleep(_PAUSE_S)

    def _send(
        self,
        reply: str,
        stream: str,
        request: WireGet,
        found: DirectReply,
        *,
        after: int = 0,
        is_over: bool = True,
    ) -> None:
        for frame in direct_frames(stream, request, found, after=after, is_over=is_over):
            self._answer(reply, frame.block or None, frame.data)

    def _refuse(self, reply: str, error: PeltonError, request: WireGet | None = None) -> None:
        frame = direct_refusal(error, request)
        self._answer(reply, frame.block, frame.data)


# --- pulls of clients: each stands in the engine until it is filled or over, and answers on its reply subject (ADR-13)

_COUNTED: Final = (EXPIRED, TOO_LARGE, BATCH_COMPLETED, PIN_TAKEN)


class ClientPulls:
    """The pulls of one account's clients.

    ``receives``: whether a subject has a subscriber, ``has_room``: whether one of them keeps up.
    """

    def __init__(
        self,
        serving: Serving,
        send: Send,
        answer: Callable[[str, bytes | None, bytes], None],
        receives: Callable[[str], bool],
        has_room: Callable[[str], bool],
    ) -> None:
        self._has_room = has_room
        self._serving = serving
        self._send = send
        self._answer = answer
        self._receives = receives

    def take(self, names: str, message: Published) -> bool:
        """Let a pull stand; False if there is no such consumer."""
        stream, _, consumer = names.partition(".")
        config = self._serving.consumer(stream, consumer)
        if config is None:
            return False
        if not message.reply:
            return True
        try:
            request = decode_next(message.data)
        except ApiError as error:
            self._answer(message.reply, status_block(error.code, error.description), b"")
            return True
        self.pull(stream, consumer, request, message.reply)
        return True

    def pull(self, stream: str, consumer: str, asked: NextRequest, reply: str) -> None:
        """Let a pull stand."""
        sink = _ClientSink(self._send, self._receives, self._has_room, reply)
        self._serving.standing.pull(stream, consumer, asked.request, max(asked.idle_heartbeat, 0) / 1e9, sink)


class _ClientSink:
    """Sends what a pull gets to its reply subject."""

    def __init__(
        self, send: Send, receives: Callable[[str], bool], has_room: Callable[[str], bool], reply: str
    ) -> None:
        self._send = send
        self._room = has_room
        self._receives = receives
        self._reply = reply

    @property
    def is_gone(self) -> bool:
        """Whether nobody subscribes to the reply subject any more."""
        return not self._receives(self._reply)

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it gets."""
        return self._room(self._reply)

    def deliver(self, messages: Sequence[Delivered]) -> None:
        """Send messages, each with the subject that acknowledges it."""
        for message in messages:
            self._send(self._reply, message.subject, message.reply, message.headers, message.data)

    def beat(self, last_consumer: int, last_stream: int) -> None:
        """Send a sign of life."""
        values = {headers.LAST_CONSUMER: last_consumer, headers.LAST_STREAM: last_stream}
        self._send(self._reply, self._reply, "", status_block(HEARTBEAT.code, HEARTBEAT.text, **values), b"")

    def end(self, status: PullStatus, left: int, left_bytes: int) -> None:
        """Tell how the pull ended, and what it did not get."""
        counts = {headers.PENDING_MESSAGES: left, headers.PENDING_BYTES: left_bytes} if status in _COUNTED else {}
        self._send(self._reply, self._reply, "", status_block(status.code, status.text, **counts), b"")


Answer = Callable[[str, bytes | None, bytes], None]
"""Sends an answer: reply subject, header block, data."""
_ACKS: Final = "$JS.ACK."
_API: Final = "$JS.API."
_NEXT: Final = "CONSUMER.MSG.NEXT."
_DIRECT: Final = "DIRECT.GET."


class JetStreamService:
    """Answers messages on ``$JS.>``, and those of a domain on ``$JS.<domain>.>``."""

    def __init__(
        self,
        link: StoreLink,
        send: Send,
        answer: Answer,
        receives: Callable[[str], bool],
        has_room: Callable[[str], bool],
        runtime: Runtime,
        account: str,
        completion: ReplyCompletion,
    ) -> None:
        domain = completion.domain
        self._domain = f"$JS.{domain}.API." if domain else ""
        self._pulls = ClientPulls(link.serving, send, answer, receives, has_room)
        self._acks = ClientAcks(link, answer, self._pulls.pull, long_ack_prefix(account, domain))
        self._direct = DirectGetService(link, answer, receives, has_room, runtime)
        self._verbs = ApiVerbs(link, answer, completion)
        self._archives = ArchiveService(link, send, answer, runtime)

    def take(self, message: Published) -> bool:
        """Answer a message; False if nobody does."""
        subject = message.subject
        if subject.startswith(_ACKS):
            return self._acks.take(message)
        if subject.startswith(TRANSFERS):
            return self._archives.take_transfer(message)
        if subject.startswith(_API):
            path = subject[len(_API) :]
        elif self._domain and subject.startswith(self._domain):
            path = subject[len(self._domain) :]
        else:
            return False
        if path.startswith(_NEXT):
            return self._pulls.take(path[len(_NEXT) :], message)
        if path.startswith(_DIRECT):
            return self._direct.take(path[len(_DIRECT) :], message)
        return self._archives.take(path, message) or self._verbs.take(path, message)
