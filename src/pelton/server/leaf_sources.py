"""What the streams of a leaf node take from streams of its hub, or of what is behind it: as nats-server does it.

For each source and mirror that has ``external``, an ephemeral push consumer is made there, without acks, with flow
control and heartbeats, which starts after the last message that was taken. What it delivers is stored in batches, each
in a transaction with the position; while one is stored, flow control is not answered again, so what is on its way is
bounded, however slow this side is. A delivery that is missing, heartbeats that are, and each change of the connection
to the hub begin anew with another consumer, after the position. So each message is stored once, in order, whatever is
lost or killed.

What reaches the hub is behind :class:`HubPort`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from pelton.api import (
    ApiError,
    Backoff,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    Delivered,
    PeltonError,
    Request,
    StreamInfoRequest,
    StreamSource,
    headers,
    parse_rfc3339,
)
from pelton.api.codec import api_subject, decode_reply, encode_body
from pelton.api.info import ErrorBody
from pelton.api.message import delivery_of
from pelton.api.times import Duration
from pelton.engine.serving import Serving
from pelton.runtime import Runtime, Signal
from pelton.runtime.clock import within
from pelton.server.interest import LeafInterest
from pelton.server.router import ClientSubscription, MessageFrame, Router
from pelton.server.store_link import StoreLink
from pelton.sourcing import RemoteLink
from pelton.wire import ConnectOptions

R = TypeVar("R")
_log: Final = logging.getLogger("pelton.server")
_HEARTBEAT_S: Final = 1.0
# So long a consumer may be silent.
_SILENCE_S: Final = 3.0
_ANSWER_S: Final = 5.0
# A consumer that nobody hears is deleted by the hub after so long.
_UNUSED_S: Final = 10.0
_ACK_WAIT_S: Final = 22 * 3600.0
_AT_ONCE: Final = 4096
_LAST_SEQ: Final = (1 << 63) - 2
_PATIENCE: Final = Backoff(base=0.05, cap=5.0)
_STATUS: Final = b"NATS/1.0 "


class HubMessage(NamedTuple):
    """What the hub sends to a subject of this side."""

    subject: str
    reply: str
    block: bytes | None
    data: bytes


class HubPort(Protocol):
    """What reaches the hub. ``changes`` tells that a connection began or ended."""

    changes: Signal

    @property
    def is_connected(self) -> bool:
        """Whether there is a hub now."""

    def listen(self, subject: str, receive: Callable[[HubMessage], None]) -> Callable[[], None]:
        """Call back with what the hub sends to a subject; return how to end that."""

    def send(self, subject: str, data: bytes, reply: str = "") -> bool:
        """Send a message; return whether anybody there wants it."""


class _NobodyError(Exception):
    """The hub is away, or has no such JetStream, or does not answer."""


class HubSource:
    """Takes from one origin for one stream, until it is cancelled."""

    def __init__(self, serving: Serving, port: HubPort, stream: str, source: StreamSource, runtime: Runtime) -> None:
        assert source.external is not None
        self._serving = serving
        self._port = port
        self._stream = stream
        self._source = source
        self._runtime = runtime
        self._api = source.external.api
        self._deliver = source.external.deliver or "_INBOX"
        self._inbox: deque[HubMessage] = deque()
        self._arrived = Signal()
        self._failures = 0
        self._told = ""

    async def run(self) -> None:
        """Take what there is, again and again."""
        while True:
            seen = self._port.changes.generation
            try:
                await self._stay()
            except _NobodyError as error:
                # That no hub is there is told by its connection.
                if self._port.is_connected:
                    self._tell(str(error))
            except ApiError as error:
                self._tell(str(error))
                await self._note(ErrorBody(code=error.code, err_code=error.err_code, description=error.description))
            except (PeltonError, ValueError) as error:
                # A store that cannot be written now, or a hub that does not keep to the protocol.
                self._tell(str(error))
            self._failures += 1
            delay = _PATIENCE.delay(self._failures, self._runtime.random)
            await self._port.changes.wait_at_most(self._runtime.clock, delay, seen)

    def _tell(self, reason: str) -> None:
        """Say why nothing is taken, once."""
        if reason != self._told:
            _log.warning("stream %r takes nothing of %r of %s: %s", self._stream, self._source.name, self._api, reason)
            self._told = reason

    async def _note(self, problem: ErrorBody) -> None:
        try:
            await self._at_source(lambda link: link.note(problem))
        except PeltonError as error:
            _log.debug("the state of a source of stream %r cannot be stored: %s", self._stream, error)

    async def _at_source(self, do: Callable[[RemoteLink], R], *, durable: bool = True) -> R:
        return await self._serving.at_source(self._stream, self._source, do, durable=durable)

    async def _ask(self, request: Request[R]) -> R:
        """Ask the JetStream of the origin. Raises ApiError, _NobodyError."""
        answer: asyncio.Future[HubMessage] = asyncio.get_running_loop().create_future()
        inbox = f"_INBOX.{self._runtime.ids.new()}"

        def receive(message: HubMessage) -> None:
            if not answer.done():
                answer.set_result(message)

        end = self._port.listen(inbox, receive)
        try:
            if not self._port.send(api_subject(request, self._api), encode_body(request), inbox):
                raise _NobodyError("no hub that is connected has it")
            found = await within(self._runtime.clock, _ANSWER_S, answer)
        except TimeoutError:
            raise _NobodyError("it does not answer") from None
        finally:
            end()
        if found.block is not None and found.block.startswith(_STATUS):
            raise _NobodyError("nobody answers for it")
        return decode_reply(request, found.data)

    # --- one consumer

    async def _stay(self) -> None:
        """Make a consumer, and take what it delivers until there is a reason to make another one."""
        seen = self._port.changes.generation
        info = await self._ask(StreamInfoRequest(name=self._source.name))
        created = parse_rfc3339(info.created)
        after = await self._at_source(lambda link: link.begin(created, info.state.last_seq), durable=False)
        deliver = f"{self._deliver}.{self._runtime.ids.new()}"
        self._inbox.clear()
        end, consumer = self._port.listen(deliver, self._receive), ""
        try:
            is_kept = info.config.retention == "limits"
            config = self._config(deliver, after) if is_kept else self._settling(deliver, after)
            made = await self._ask(ConsumerCreate(stream_name=self._source.name, config=config))
            consumer = made.name
            await self._at_source(partial(_note_start, made.delivered.stream_seq, made.num_pending), durable=False)
            self._serving.hear(self._stream, self._source)
            self._told = ""
            await _Run(self, created, after, seen, settles=not is_kept).follow()
        finally:
            end()
            if consumer:
                # Nobody waits for the answer.
                request = ConsumerDelete(stream=self._source.name, name=consumer)
                self._port.send(api_subject(request, self._api), b"")

    def _config(self, deliver: str, after: int) -> ConsumerConfig:
        source = self._source
        filters = tuple(one.src for one in source.subject_transforms)
        start: dict[str, Any] = {}
        if source.opt_start_time and not after:
            start = {"deliver_policy": "by_start_time", "opt_start_time": source.opt_start_time}
        elif after:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        if len(filters) == 1 or source.filter_subject:
            start["filter_subject"] = source.filter_subject or filters[0]
        elif filters:
            start["filter_subjects"] = filters
        return ConsumerConfig(
            deliver_subject=deliver,
            ack_policy="none",
            ack_wait=Duration(_ACK_WAIT_S),
            max_deliver=1,
            idle_heartbeat=Duration(_HEARTBEAT_S),
            flow_control=True,
            direct=True,
            inactive_threshold=Duration(_UNUSED_S),
            **start,
        )

    def _settling(self, deliver: str, after: int) -> ConsumerConfig:
        """Return the consumer for a stream that lets go of what is acknowledged: that is what is stored here."""
        config = self._config(deliver, after)
        start: dict[str, Any] = {"deliver_policy": "all", "opt_start_seq": 0, "opt_start_time": ""}
        return replace(config, ack_policy="explicit", max_ack_pending=-1, direct=False, **start)

    def wake(self) -> None:
        """Look whether there is still a hub."""
        self._arrived.notify()

    def _receive(self, message: HubMessage) -> None:
        self._inbox.append(message)
        if len(self._inbox) == 1:
            self._arrived.notify()

    # --- for a run

    async def next_messages(self, is_over: Callable[[], bool]) -> list[HubMessage]:
        """Return what has arrived; nothing if the hub is silent for too long."""
        begun = self._runtime.clock.monotonic()
        while not self._inbox and not is_over():
            left = begun + _SILENCE_S - self._runtime.clock.monotonic()
            if left <= 0:
                return []
            await self._arrived.wait_at_most(self._runtime.clock, left, self._arrived.generation)
        inbox, before = self._inbox, 0
        while before < len(inbox) < _AT_ONCE:
            # A transaction costs a sync: it stores what the wire has by now.
            before = len(inbox)
            await asyncio.sleep(0)
        return [inbox.popleft() for _ in range(min(len(inbox), _AT_ONCE))]

    def is_moved(self, seen: int) -> bool:
        """Whether a connection to a hub has begun or ended since."""
        return self._port.changes.generation != seen

    def note_contact(self) -> None:
        """Note that the origin is there."""
        self._failures = 0
        self._serving.hear(self._stream, self._source)

    def answer(self, subject: str, data: bytes = b"") -> None:
        """Let the consumer go on, or acknowledge what it has delivered."""
        self._port.send(subject, data)

    async def store(self, created: int, after: int, rows: Sequence[Delivered], left: int, seen: int) -> int | None:
        """Store messages, however long that takes; return the position, None if it was moved, or the hub is lost."""
        attempt = 0
        while True:
            try:
                reached: int | None = await self._at_source(partial(_take, created, after, rows, left))
            except ApiError:
                raise
            except PeltonError as error:
                self._tell(str(error))
                reached = after
            if reached is None or not (rows := [row for row in rows if row.seq > reached]):
                return reached
            after, attempt = reached, attempt + 1
            await self._port.changes.wait_at_most(
                self._runtime.clock, _PATIENCE.delay(attempt, self._runtime.random), seen
            )
            if self.is_moved(seen):
                return None


def _note_start(skipped: int, pending: int, link: RemoteLink) -> None:
    link.skip(skipped)
    link.note(None, pending)


def _take(created: int, after: int, rows: Sequence[Delivered], left: int, link: RemoteLink) -> int | None:
    return link.take(created, after, rows, left)


class _Run:
    """What one consumer delivers: every delivery follows the one before, or it is over. ``settles``: it wants acks."""

    def __init__(self, source: HubSource, created: int, after: int, seen: int, *, settles: bool) -> None:
        self._source = source
        self._created = created
        self._after = after
        self._seen = seen
        self._number = 0
        self._read_up_to = after
        self._left = 0
        self._settles = settles
        self._settled: list[str] = []
        self._is_over = False

    async def follow(self) -> None:
        """Store what arrives until the consumer is lost."""
        while not self._is_over:
            messages = await self._source.next_messages(lambda: self._source.is_moved(self._seen))
            if not messages:
                return
            self._source.note_contact()
            rows, answers = self._read(messages)
            # More comes while this is stored, and is not looked at before: at most what flow control lets through.
            for subject in answers:
                self._source.answer(subject)
            if rows:
                reached = await self._source.store(self._created, self._after, rows, self._left, self._seen)
                if reached is None:
                    return
                self._after = reached
            for reply in self._settled:
                self._source.answer(reply, b"+ACK")
            self._settled.clear()

    def _read(self, messages: Sequence[HubMessage]) -> tuple[list[Delivered], list[str]]:
        """Return the messages to store, and the subjects on which flow control is answered."""
        rows, answers = list[Delivered](), list[str]()
        for subject, reply, block, data in messages:
            if block is not None and block.startswith(_STATUS):
                # A request of flow control has a reply; a heartbeat names that of a consumer that waits for it.
                last = headers.first_value(block, headers.LAST_CONSUMER)
                stalled = reply or headers.first_value(block, headers.CONSUMER_STALLED)
                if last is not None and last != str(self._number):
                    self._is_over = True
                    break
                if stalled:
                    answers.append(stalled)
                continue
            one = delivery_of(subject, reply, block, data)
            if one.consumer_seq != self._number + 1:
                self._is_over = True
                break
            if self._settles:
                self._settled.append(reply)
            self._number, self._left = one.consumer_seq, one.num_pending
            if self._read_up_to < one.seq <= _LAST_SEQ and 0 <= one.time_ns <= _LAST_SEQ:
                self._read_up_to = one.seq
                rows.append(one)
        return rows, answers


# --- all of an account


class SourcesAccount(Protocol):
    """An account that may have a store, and hubs."""

    name: str
    router: Router
    link: StoreLink | None
    leaf: LeafInterest | None

    def subscribe(self, subscription: ClientSubscription) -> None: ...
    def unsubscribe(self, subscription: ClientSubscription) -> None: ...


class AccountHubs:
    """The way to the hubs of an account: it is as if a client of this server listened there and sent."""

    echo = False
    options: ConnectOptions = ConnectOptions(headers=True, verbose=False, pedantic=False)
    room = reserve = 1 << 16

    def __init__(self, account: SourcesAccount) -> None:
        self._account = account
        self.changes: Signal = Signal()
        self._heard: dict[ClientSubscription, Callable[[HubMessage], None]] = {}

    @property
    def is_connected(self) -> bool:
        return self._account.leaf is not None and bool(self._account.leaf.hubs)

    def listen(self, subject: str, receive: Callable[[HubMessage], None]) -> Callable[[], None]:
        one = ClientSubscription(self, subject.encode(), subject, "")
        # Other processes have nothing for it, so they are not told.
        one.known_to = self._account.link
        self._heard[one] = receive
        self._account.subscribe(one)

        def end() -> None:
            one.known_to = None
            del self._heard[one]
            self._account.unsubscribe(one)

        return end

    def send(self, subject: str, data: bytes, reply: str = "") -> bool:
        far = self._account.router.targets(subject)._replace(plain=(), groups=())
        return self._account.router.deliver_to(far, subject, MessageFrame(subject, reply, None, data)) > 0

    # --- what a client does

    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None:
        if (receive := self._heard.get(subscription)) is not None:
            receive(HubMessage(frame.subject, frame.reply, frame.block, frame.data))

    def deliver_run(self, subscription: ClientSubscription, run: bytes, size: int, replies: Sequence[str]) -> None:
        """Take nothing: what is encoded for a client is this server's own."""

    def may_receive(self, subscription: ClientSubscription, subject: str) -> bool:
        return True

    def has(self, subscription: ClientSubscription) -> bool:
        return subscription in self._heard

    def flush(self) -> None:
        """Do nothing: nothing waits."""

    def stop_reading(self) -> None:
        """Do nothing: flow control bounds what the hub sends."""

    read_again = stop_reading


class LeafSources:
    """The sources of an account's store that are behind its hubs: each is taken from, as long as it is configured."""

    def __init__(self, account: SourcesAccount, runtime: Runtime) -> None:
        self._account = account
        self._runtime = runtime
        self._hubs = AccountHubs(account)
        self._link: StoreLink | None = None
        self._version = -1
        self._running: dict[tuple[str, StreamSource], tuple[HubSource, asyncio.Task[None]]] = {}

    def look(self) -> None:
        """Begin with what is configured now, and end with what is not."""
        link = self._account.link
        version = -1 if link is None else link.serving.version
        if link is self._link and version == self._version:
            return
        if link is not self._link:
            self._end(list(self._running))
        self._link, self._version = link, version
        wanted = [] if link is None else link.serving.remote_sources
        self._end([key for key in self._running if key not in wanted])
        for stream, source in wanted:
            if link is not None and (stream, source) not in self._running:
                one = HubSource(link.serving, self._hubs, stream, source, self._runtime)
                task = self._runtime.spawn(one.run(), f"pelton takes {source.name} for {stream}")
                self._running[stream, source] = one, task

    def hubs_changed(self) -> None:
        """Note that a connection to a hub began or ended."""
        self._hubs.changes.notify()
        for one, _ in self._running.values():
            one.wake()

    def _end(self, keys: Sequence[tuple[str, StreamSource]]) -> list[asyncio.Task[None]]:
        ended = [self._running.pop(key)[1] for key in keys]
        for task in ended:
            task.cancel()
        return ended

    async def close(self) -> None:
        """Take no more."""
        await asyncio.gather(*self._end(list(self._running)), return_exceptions=True)
