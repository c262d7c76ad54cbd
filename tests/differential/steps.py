"""What a program may do to a store: one small class a step, with a text that is the code which makes it.

A step runs on either side and returns what was observed, as plain data. Deliveries are kept by the side that got
them (:class:`Side`); steps that acknowledge name one by its place, so that both sides mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

import pelton
from pelton import api
from pelton.api import headers

Consumer = tuple[str, str]


class Side:
    """One of the two stores, and what it has delivered: of each message the newest delivery, oldest first."""

    def __init__(self, jet: pelton.Jet) -> None:
        self.jet = jet
        self.held: dict[Consumer, dict[int, api.Delivered]] = {}
        self.settled: dict[Consumer, set[int]] = {}

    async def call(self, request: api.Request[Any]) -> Any:
        return await self.jet.backend.call(request)

    def forget(self, stream: str, consumer: str = "") -> None:
        """Drop the deliveries of a consumer, or of all of a stream, that are gone or may have become others."""
        for key in [key for key in self.held if key[0] == stream and consumer in ("", key[1])]:
            del self.held[key]
            self.settled.pop(key, None)

    def keep(self, found: list[api.Delivered]) -> None:
        for delivered in found:
            key = delivered.stream, delivered.consumer
            mine = self.held.setdefault(key, {})
            mine.pop(delivered.seq, None)
            mine[delivered.seq] = delivered
            self.settled.setdefault(key, set()).discard(delivered.seq)


@dataclass(frozen=True, repr=False)
class Step:
    """One step of a program."""

    def __repr__(self) -> str:
        given = ((item.name, getattr(self, item.name), item) for item in fields(self))
        texts = [f"{name}={value!r}" for name, value, item in given if value != _default(item)]
        return f"{type(self).__name__}({', '.join(texts)})"

    async def run(self, side: Side) -> Any:
        raise NotImplementedError


def _default(item: Any) -> Any:
    return item.default_factory() if callable(item.default_factory) else item.default


@dataclass(frozen=True, repr=False)
class CreateStream(Step):
    config: dict[str, Any] = field(default_factory=dict)
    name: str = "S"

    async def run(self, side: Side) -> Any:
        config = msgspec.convert({"name": self.name, **self.config}, api.StreamConfig)
        return await side.call(api.StreamCreate(config=config))


@dataclass(frozen=True, repr=False)
class UpdateStream(Step):
    config: dict[str, Any] = field(default_factory=dict)
    name: str = "S"

    async def run(self, side: Side) -> Any:
        config = msgspec.convert({"name": self.name, **self.config}, api.StreamConfig)
        return await side.call(api.StreamUpdate(config=config))


@dataclass(frozen=True, repr=False)
class DeleteStream(Step):
    name: str = "S"

    async def run(self, side: Side) -> Any:
        side.forget(self.name)
        return await side.call(api.StreamDelete(name=self.name))


@dataclass(frozen=True, repr=False)
class LookAtStream(Step):
    name: str = "S"
    subjects_filter: str = ""
    offset: int = 0
    deleted_details: bool = False

    async def run(self, side: Side) -> Any:
        return await side.call(
            api.StreamInfoRequest(
                name=self.name,
                subjects_filter=self.subjects_filter,
                offset=self.offset,
                deleted_details=self.deleted_details,
            )
        )


@dataclass(frozen=True, repr=False)
class ListStreams(Step):
    subject: str = ""
    offset: int = 0

    async def run(self, side: Side) -> Any:
        names = await side.call(api.StreamNames(subject=self.subject, offset=self.offset))
        listed = await side.call(api.StreamList(subject=self.subject, offset=self.offset))
        return [names, listed]


@dataclass(frozen=True, repr=False)
class ListConsumers(Step):
    stream: str = "S"
    offset: int = 0

    async def run(self, side: Side) -> Any:
        names = await side.call(api.ConsumerNames(stream=self.stream, offset=self.offset))
        listed = await side.call(api.ConsumerList(stream=self.stream, offset=self.offset))
        return [names, listed]


@dataclass(frozen=True, repr=False)
class Purge(Step):
    name: str = "S"
    filter: str = ""
    seq: int = 0
    keep: int = 0

    async def run(self, side: Side) -> Any:
        return await side.call(api.StreamPurge(name=self.name, filter=self.filter, seq=self.seq, keep=self.keep))


@dataclass(frozen=True, repr=False)
class GetMessage(Step):
    stream: str = "S"
    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""

    async def run(self, side: Side) -> Any:
        return await side.call(
            api.MsgGet(stream=self.stream, seq=self.seq, last_by_subj=self.last_by_subj, next_by_subj=self.next_by_subj)
        )


@dataclass(frozen=True, repr=False)
class DeleteMessage(Step):
    seq: int = 1
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        return await side.call(api.MsgDelete(stream=self.stream, seq=self.seq))


@dataclass(frozen=True, repr=False)
class Publish(Step):
    subject: str = "s.a"
    size: int = 1
    headers: dict[str, str] = field(default_factory=dict)

    async def run(self, side: Side) -> Any:
        block = headers.encode(self.headers) if self.headers else None
        return await side.jet.backend.publish(self.subject, b"x" * self.size, block)


@dataclass(frozen=True, repr=False)
class PublishMany(Step):
    """A batch: embedded in one transaction, on the server one after the other, up to the first refused one."""

    messages: tuple[tuple[str, int], ...] = ()

    async def run(self, side: Side) -> Any:
        batch = [(subject, b"x" * size, None) for subject, size in self.messages]
        if isinstance(side.jet.backend, pelton.engine.Engine):
            return await side.jet.backend.publish_batch(batch)
        return [await side.jet.backend.publish(*message) for message in batch]


@dataclass(frozen=True, repr=False)
class CreateConsumer(Step):
    config: dict[str, Any] = field(default_factory=dict)
    name: str = "c"
    stream: str = "S"
    action: str = ""

    async def run(self, side: Side) -> Any:
        config = msgspec.convert({"durable_name": self.name, "name": self.name, **self.config}, api.ConsumerConfig)
        request = api.ConsumerCreate(stream_name=self.stream, config=config, action=self.action)  # type: ignore[arg-type]  # drawn from its words
        return await side.call(request)


@dataclass(frozen=True, repr=False)
class LookAtConsumer(Step):
    name: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        return await side.call(api.ConsumerInfoRequest(stream=self.stream, name=self.name))


@dataclass(frozen=True, repr=False)
class DeleteConsumer(Step):
    name: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        side.forget(self.stream, self.name)
        return await side.call(api.ConsumerDelete(stream=self.stream, name=self.name))


@dataclass(frozen=True, repr=False)
class Fetch(Step):
    batch: int = 1
    max_bytes: int = 0
    consumer: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        request = api.PullRequest(batch=self.batch, max_bytes=self.max_bytes, no_wait=True)
        found = await side.jet.backend.pull(self.stream, self.consumer, request)
        side.keep(found)
        return found


@dataclass(frozen=True, repr=False)
class Ack(Step):
    """Acknowledge a delivery, counted from the newest of its consumer; nothing where there is none."""

    kind: str = "ack"
    back: int = 0
    delay_ns: int = 0
    consumer: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        key = self.stream, self.consumer
        found = list(side.held.get(key, {}).values())
        if not found:
            return None
        delivered = found[-1 - self.back % len(found)]
        again = delivered.seq in side.settled[key]
        if self.kind in ("ack", "term"):
            side.settled[key].add(delivered.seq)
        op = api.AckOp(
            kind=self.kind,  # type: ignore[arg-type]  # drawn from its words
            seq=delivered.seq,
            consumer_seq=delivered.consumer_seq,
            delay_ns=self.delay_ns,
        )
        answers = await side.jet.backend.ack(self.stream, self.consumer, (op,))
        # The second ack of a delivery is refused embedded and confirmed by a server; it changes nothing on either.
        return None if again else [type(answer).__name__ for answer in answers]
