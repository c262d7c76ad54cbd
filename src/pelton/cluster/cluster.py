"""The cluster as a Backend: every verb is its JSON on its ``$JS.API`` subject, every hot path its own protocol.

What a NATS server cannot do is refused by name: a limit of unacknowledged messages per subject exists in
embedded stores alone. What it does not tell is not made up: which messages are unsettled is answered with
none (:class:`ConsumerUnsettled`), so a queue's counts show retrying jobs as running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from pelton.api import (
    AccountInfoRequest,
    AckOp,
    ConfigError,
    ConsumerCreate,
    ConsumerInfoRequest,
    ConsumerList,
    ConsumerNames,
    ConsumerUnsettled,
    ConsumerUnsettledReply,
    Delivered,
    DirectGet,
    DirectGetDisabledError,
    DirectReply,
    JetStreamMissingError,
    MsgGet,
    Outgoing,
    PeltonError,
    PubAck,
    PullRequest,
    Request,
    ServerTimeoutError,
    StreamInfoRequest,
    StreamList,
    StreamNames,
    api_subject,
    decode_reply,
    encode_body,
)
from pelton.cluster.acking import NobodyListens, ack_all
from pelton.cluster.address import ClusterSettings
from pelton.cluster.connection import NO_RESPONDERS, Connection, Interrupted, NotSent
from pelton.cluster.direct import direct_get
from pelton.cluster.publishing import publish_all, publish_one, with_ids
from pelton.cluster.pulling import Channel, Pull
from pelton.runtime import Runtime

R = TypeVar("R")
_READS: Final = frozenset(
    {
        AccountInfoRequest,
        StreamInfoRequest,
        StreamNames,
        StreamList,
        MsgGet,
        ConsumerInfoRequest,
        ConsumerNames,
        ConsumerList,
    }
)


class Cluster:
    """A Backend on a NATS cluster; belongs to the event loop that uses it first."""

    def __init__(self, settings: ClusterSettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._connection = Connection(settings, runtime)
        self._channels: dict[tuple[str, str], list[Channel]] = {}

    async def connect(self) -> None:
        """Connect now rather than on first use.

        Raises ServerUnreachableError, ServerRefusedError, ServerTimeoutError, JetStreamMissingError.
        """
        await self._connection.client()

    # --- the port

    async def call(self, request: Request[R]) -> R:
        """Do one administrative verb; when the connection was lost under way, only a read is repeated."""
        _refuse_embedded_only(request)
        if isinstance(request, ConsumerUnsettled):
            await self.call(ConsumerInfoRequest(stream=request.stream, name=request.name))
            return cast(R, ConsumerUnsettledReply())
        subject, body = api_subject(request, self._settings.api_prefix), encode_body(request)
        ask = lambda: self._connection.ask(subject, body)  # noqa: E731  # what may be repeated
        answer = await self._through_gaps(ask, repeat=type(request) in _READS)
        if answer.status == NO_RESPONDERS:
            raise JetStreamMissingError(self._settings.name, "nobody answers the JetStream API now")
        return decode_reply(request, answer.data)

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message; one with a message id outlasts a lost connection and is stored once."""
        return await publish_one(self._connection, (subject, data, headers))

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order; after one that is refused, some of the next 4,096 may have been stored."""
        return await publish_all(self._connection, messages)

    async def pull(self, stream: str, consumer: str, request: PullRequest) -> list[Delivered]:
        """Take up to ``request.batch`` messages."""
        if request.batch < 1:
            return []
        end = None if request.expires_ns is None else self._runtime.clock.monotonic() + request.expires_ns / 1e9
        while True:
            channel = self._take(stream, consumer)
            found = await self._pulled(channel, stream, consumer, request)
            if found is not None:
                return found
            left = None if end is None else int(max(end - self._runtime.clock.monotonic(), 0) * 1e9)
            await self._connection.until_connected(self._patience_ends())
            request = msgspec.structs.replace(request, expires_ns=left)

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages where they lie; asked again when the connection was lost."""
        ask = lambda: direct_get(self._connection, self._settings.api_prefix, stream, request)  # noqa: E731  # repeated
        reply = await self._through_gaps(ask, repeat=True)
        if reply is not None:
            return reply
        info = await self.call(StreamInfoRequest(name=stream))
        if info.config.allow_direct:
            raise ServerTimeoutError(self._settings.name, f"nobody answers direct gets of stream {stream!r} now")
        raise DirectGetDisabledError(stream)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries, each confirmed by the server; repeated when the connection was lost."""
        answers: list[PeltonError | None] = [None] * len(acks)
        left = list(range(len(acks)))
        end: float | None = None
        while left:
            found = await ack_all(self._connection, stream, consumer, [acks[index] for index in left])
            again = []
            for index, answer in zip(left, found, strict=True):
                if isinstance(answer, NobodyListens):
                    return await self._unheard(stream, consumer, answers)
                if isinstance(answer, Interrupted):
                    again.append(index)
                else:
                    answers[index] = answer
            left = again
            if left:
                end = self._patience_ends() if end is None else end
                await self._connection.until_connected(end)
        return answers

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages, each with an id, then acknowledge the delivery they result from."""
        acks = await publish_all(self._connection, with_ids(publishes, self._runtime.ids.new()))
        refused = (await self.ack(stream, consumer, (ack,)))[0]
        if refused is not None:
            raise refused
        return acks

    def clone(self) -> Cluster:
        """Return another connection to the same cluster; it is made on first use."""
        return Cluster(self._settings, self._runtime)

    async def close(self) -> None:
        """Close the connection; waiting pulls end with StoreClosedError. Idempotent."""
        await self._connection.close()

    # --- pulls

    def _take(self, stream: str, consumer: str) -> Channel:
        free = self._channels.get((stream, consumer))
        return free.pop() if free else Channel(self._connection)

    async def _pulled(
        self, channel: Channel, stream: str, consumer: str, request: PullRequest
    ) -> list[Delivered] | None:
        """Return what one pull got; None where the connection was lost and it got nothing."""
        subject = f"{self._settings.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        try:
            usable = await Pull(self._connection, subject, request, (stream, consumer)).run(channel)
        except BaseException as error:
            self._runtime.spawn(self._give_back(channel, stream, consumer), "pelton gives back what it pulled")
            if isinstance(error, PeltonError):
                await self._explain(stream, consumer)
            raise
        if not usable:
            await channel.retire()
        found, channel.messages = channel.messages, []
        if usable:
            self._channels.setdefault((stream, consumer), []).append(channel)
        lost = not usable and not found and channel.is_lost
        return None if lost else found

    async def _give_back(self, channel: Channel, stream: str, consumer: str) -> None:
        await channel.retire()
        taken = [AckOp(kind="nak", seq=message.seq, consumer_seq=message.consumer_seq) for message in channel.messages]
        if taken:
            await self.ack(stream, consumer, taken)

    # --- shared

    async def _explain(self, stream: str, consumer: str) -> Any:
        """Raise the server's own error where a stream or consumer is gone."""
        return await self.call(ConsumerInfoRequest(stream=stream, name=consumer))

    async def _unheard(self, stream: str, consumer: str, answers: list[PeltonError | None]) -> list[PeltonError | None]:
        info = await self._explain(stream, consumer)
        if info.config.ack_policy == "none":
            return [None] * len(answers)
        raise ServerTimeoutError(self._settings.name, f"nobody took the acks of consumer {consumer!r}")

    async def _through_gaps(self, ask: Callable[[], Awaitable[R]], *, repeat: bool) -> R:
        end: float | None = None
        while True:
            try:
                return await ask()
            except Interrupted as lost:
                if not repeat and not isinstance(lost, NotSent):
                    reason = "the connection was lost while the answer was awaited"
                    raise ServerTimeoutError(self._settings.name, reason) from None
                end = self._patience_ends() if end is None else end
                await self._connection.until_connected(end)

    def _patience_ends(self) -> float:
        return self._runtime.clock.monotonic() + self._settings.patience


def _refuse_embedded_only(request: Request[Any]) -> None:
    if isinstance(request, ConsumerCreate) and request.config.max_ack_pending_per_subject:
        name = request.config.name or request.config.durable_name
        raise ConfigError(
            f"consumer {name!r} of stream {request.stream_name!r}: max_ack_pending_per_subject is a feature of the "
            "embedded engine (pelton.open with a file), a NATS server has no such limit: leave it out here"
        )
