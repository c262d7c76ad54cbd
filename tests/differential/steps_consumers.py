"""Steps on consumers: configuring them, taking deliveries, acknowledging them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from pelton import api
from pelton.api import headers
from tests.differential.steps import Side, Step


@dataclass(frozen=True, repr=False)
class CreateConsumer(Step):
    config: dict[str, Any] = field(default_factory=dict)
    name: str = "c"
    stream: str = "S"
    action: str = ""

    async def run(self, side: Side) -> Any:
        config = msgspec.convert(
            {"durable_name": self.name, "name": self.name, **self.config}, api.ConsumerConfig, dec_hook=api.dec_hook
        )
        request = api.ConsumerCreate(stream_name=side.real(self.stream), config=config, action=self.action)  # type: ignore[arg-type]  # drawn from its words
        return await side.call(request)


@dataclass(frozen=True, repr=False)
class LookAtConsumer(Step):
    name: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        return await side.call(api.ConsumerInfoRequest(stream=side.real(self.stream), name=self.name))


@dataclass(frozen=True, repr=False)
class DeleteConsumer(Step):
    name: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        side.forget(side.real(self.stream), self.name)
        return await side.call(api.ConsumerDelete(stream=side.real(self.stream), name=self.name))


@dataclass(frozen=True, repr=False)
class Fetch(Step):
    batch: int = 1
    asked: dict[str, Any] = field(default_factory=dict)
    pin: str = ""
    consumer: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        key = side.real(self.stream), self.consumer
        pin = side.pins.get(key, "") if self.pin == "mine" else self.pin
        request = api.PullRequest(batch=self.batch, no_wait=True, pin_id=pin, **self.asked)
        found = await side.jet.backend.pull(side.real(self.stream), self.consumer, request)
        side.keep(found)
        pins = [headers.first(one.headers, headers.PIN_ID) for one in found if one.headers]
        side.pins.update((key, pin) for pin in pins if pin)
        return found


@dataclass(frozen=True, repr=False)
class Ack(Step):
    """Acknowledge a delivery, counted from the newest of its consumer; does nothing if there is none."""

    kind: str = "ack"
    back: int = 0
    delay_ns: int = 0
    consumer: str = "c"
    stream: str = "S"

    def meant(self, side: Side) -> api.Delivered | None:
        """Return the delivery that is acknowledged."""
        found = list(side.held.get((side.real(self.stream), self.consumer), {}).values())
        return found[-1 - self.back % len(found)] if found else None

    async def run(self, side: Side) -> Any:
        key = side.real(self.stream), self.consumer
        delivered = self.meant(side)
        if delivered is None:
            return None
        again = delivered.seq in side.settled[key]
        if self.kind in ("ack", "term"):
            side.settled[key].update(await self._settled(side, delivered))
        op = api.AckOp(
            kind=self.kind,  # type: ignore[arg-type]  # drawn from its words
            seq=delivered.seq,
            consumer_seq=delivered.consumer_seq,
            delay_ns=self.delay_ns,
        )
        answers = await side.jet.backend.ack(side.real(self.stream), self.consumer, (op,))
        # The second ack of a delivery is refused embedded and confirmed by a server; it changes nothing on either.
        return None if again else [type(answer).__name__ for answer in answers]

    async def _settled(self, side: Side, delivered: api.Delivered) -> set[int]:
        """Return what this ack settles: with ``ack_policy`` "all", all that came before it, too."""
        key = side.real(self.stream), self.consumer
        try:
            info = await side.call(api.ConsumerInfoRequest(stream=key[0], name=key[1]))
        except api.ApiError:
            return {delivered.seq}
        if info.config.ack_policy != "all":
            return {delivered.seq}
        return {one.seq for one in side.held[key].values() if one.consumer_seq <= delivered.consumer_seq}


@dataclass(frozen=True, repr=False)
class ListConsumers(Step):
    stream: str = "S"
    offset: int = 0

    async def run(self, side: Side) -> Any:
        names = await side.call(api.ConsumerNames(stream=side.real(self.stream), offset=self.offset))
        listed = await side.call(api.ConsumerList(stream=side.real(self.stream), offset=self.offset))
        return [names, listed]


@dataclass(frozen=True, repr=False)
class Pause(Step):
    until: str = ""
    consumer: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        stream = side.real(self.stream)
        return await side.call(api.ConsumerPause(stream=stream, name=self.consumer, pause_until=self.until))


@dataclass(frozen=True, repr=False)
class Reset(Step):
    seq: int = 0
    consumer: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        stream = side.real(self.stream)
        reply = await side.call(api.ConsumerReset(stream=stream, name=self.consumer, seq=self.seq))
        side.renumbered.add((stream, self.consumer))
        # Earlier deliveries have no holder any more; their numbers may be used again.
        side.held.pop((stream, self.consumer), None)
        return reply


@dataclass(frozen=True, repr=False)
class Unpin(Step):
    group: str = "g"
    consumer: str = "c"
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        request = api.ConsumerUnpin(stream=side.real(self.stream), name=self.consumer, group=self.group)
        return await side.call(request)
