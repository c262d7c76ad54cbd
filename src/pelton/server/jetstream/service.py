"""The JetStream API of an account: which part answers a message on ``$JS.>``.

**Acks of clients: those of one round of the event loop in one group for each consumer (ADR-15).** A server answers
every ack when it is durable, also one that comes too late, as NATS does: what it has settled then is nothing.

**Direct gets of clients (ADR-31).** A batch is read and sent in pages, as the client keeps up: all of it may be larger
than what may wait for a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

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
from pelton.server.connection import AccountPort, Published
from pelton.server.jetstream.link import StoreLink
from pelton.server.jetstream.verbs import ApiVerbs, ReplyCompletion
from pelton.wire import status_block

TRANSFERS: Final = "$JS.SNAPSHOT."
_ARCHIVES: Final = {"STREAM.SNAPSHOT.": "stream_snapshot", "STREAM.RESTORE.": "stream_restore"}
_MISSING: Final = "archives need cramjam and crc32c: pip install 'pelton[serve]'"
_Key = tuple[str, str]


class ClientAcks:
    """The acks of one account's clients.

    ``long_prefix`` is how the longer form of their subjects begins, and ``pull`` makes the pull that an ack with
    ``+NXT`` asks for.
    """

    def __init__(
        self,
        link: StoreLink,
        pull: Callable[[str, str, NextRequest, str], None],
        long_prefix: str,
    ) -> None:
        self._link = link
        self._serving = link.serving
        self._answer = link.account.answer
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

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._account = link.account

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
            self._account.answer(reply, status_block(503, Nats_Subject=subject), b"")
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
        while self._account.receives(reply) and not self._account.has_room_for(reply):
            await self._link.runtime.clock.sleep(_PAUSE_S)

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
            self._account.answer(reply, frame.block or None, frame.data)

    def _refuse(self, reply: str, error: PeltonError, request: WireGet | None = None) -> None:
        frame = direct_refusal(error, request)
        self._account.answer(reply, frame.block, frame.data)


# --- pulls of clients: each stands in the engine until it is filled or over, and answers on its reply subject (ADR-13)

_COUNTED: Final = (EXPIRED, TOO_LARGE, BATCH_COMPLETED, PIN_TAKEN)


class ClientPulls:
    """The pulls of one account's clients."""

    def __init__(self, serving: Serving, account: AccountPort) -> None:
        self._serving = serving
        self._account = account

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
            self._account.answer(message.reply, status_block(error.code, error.description), b"")
            return True
        self.pull(stream, consumer, request, message.reply)
        return True

    def pull(self, stream: str, consumer: str, asked: NextRequest, reply: str) -> None:
        """Let a pull stand."""
        sink = _ClientSink(self._account, reply)
        self._serving.pulls.stand(stream, consumer, asked.request, max(asked.idle_heartbeat, 0) / 1e9, sink)


class _ClientSink:
    """Sends what a pull gets to its reply subject."""

    def __init__(self, account: AccountPort, reply: str) -> None:
        self._account = account
        self._reply = reply

    @property
    def is_gone(self) -> bool:
        """Whether nobody subscribes to the reply subject any more."""
        return not self._account.receives(self._reply)

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it gets."""
        return self._account.has_room_for(self._reply)

    def deliver(self, messages: Sequence[Delivered]) -> None:
        """Send messages, each with the subject that acknowledges it."""
        for message in messages:
            self._account.send(self._reply, message.subject, message.reply, message.headers, message.data)

    def beat(self, last_consumer: int, last_stream: int) -> None:
        """Send a sign of life."""
        self._tell(HEARTBEAT, {headers.LAST_CONSUMER: last_consumer, headers.LAST_STREAM: last_stream})

    def end(self, status: PullStatus, left: int, left_bytes: int) -> None:
        """Tell how the pull ended, and what it did not get."""
        counts = {headers.PENDING_MESSAGES: left, headers.PENDING_BYTES: left_bytes} if status in _COUNTED else {}
        self._tell(status, counts)

    def _tell(self, status: PullStatus, values: dict[str, int]) -> None:
        self._account.send(self._reply, self._reply, "", status_block(status.code, status.text, **values), b"")


_ACKS: Final = "$JS.ACK."
_API: Final = "$JS.API."
_NEXT: Final = "CONSUMER.MSG.NEXT."
_DIRECT: Final = "DIRECT.GET."


class JetStreamService:
    """Answers messages on ``$JS.>``, and those of a domain on ``$JS.<domain>.>``."""

    def __init__(self, link: StoreLink, completion: ReplyCompletion) -> None:
        self._link = link
        domain = completion.domain
        self._domain = f"$JS.{domain}.API." if domain else ""
        self._pulls = ClientPulls(link.serving, link.account)
        self._acks = ClientAcks(link, self._pulls.pull, long_ack_prefix(link.account.name, domain))
        self._direct = DirectGetService(link)
        self._verbs = ApiVerbs(link, completion)

    def take(self, message: Published) -> bool:
        """Answer a message; False if nobody does."""
        subject = message.subject
        if subject.startswith(_ACKS):
            return self._acks.take(message)
        if subject.startswith(TRANSFERS):
            return self._link.transfers.take(message)
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
        verb = next((verb for verb in _ARCHIVES if path.startswith(verb)), "")
        return self._take_archive(verb, path[len(verb) :], message) if verb else self._verbs.take(path, message)

    def _take_archive(self, verb: str, stream: str, message: Published) -> bool:
        try:
            from pelton.server.jetstream.archives import begin_restore, begin_snapshot
        except ModuleNotFoundError:
            error = api_error("JSStreamGeneralErrorF", err=_MISSING)
            self._link.account.answer(message.reply, None, encode_failure(_ARCHIVES[verb], error))
            return True
        begin = begin_snapshot if verb == "STREAM.SNAPSHOT." else begin_restore
        self._link.runtime.spawn(begin(self._link, stream, message), "pelton begins to transfer an archive")
        return True
