"""The steps of a program: one small class per step, with a text that is the code to make it.

A step runs on either side and returns its observations, as plain data. Each side keeps the deliveries that it
got (:class:`Side`); steps that acknowledge name one by its place, so that both sides mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

import pelton
from pelton import api
from pelton.engine import Engine

Consumer = tuple[str, str]


class Side:
    """One of the two stores, and its deliveries: the newest of each message, oldest first.

    ``engine`` is the one behind it, if it is ours.
    """

    def __init__(self, jet: pelton.Jet, program: int, engine: Engine | None = None) -> None:
        self._program = program
        self.jet = jet
        self.engine = engine
        self.held: dict[Consumer, dict[int, api.Delivered]] = {}
        self.settled: dict[Consumer, set[int]] = {}
        self.pins: dict[Consumer, str] = {}
        self.renumbered: set[Consumer] = set()
        self._batches = 0
        self._lives: dict[str, int] = {}

    def real(self, name: str) -> str:
        """Return the name of a stream in the store: the name of a deleted one is never reused, in any program.

        A server deletes a stream's files a moment after its reply, and sometimes finds them again.
        """
        return f"{name}{self._program:05}{self._lives.get(name, 0)}"

    def deleted(self, name: str) -> None:
        self.forget(self.real(name))
        self._lives[name] = self._lives.get(name, 0) + 1

    def next_batch(self) -> str:
        self._batches += 1
        return f"batch{self._batches}"

    async def call(self, request: api.Request[Any]) -> Any:
        return await self.jet.backend.call(request)

    def forget(self, stream: str, consumer: str = "") -> None:
        """Drop the deliveries of a consumer, or of a whole stream, that are gone or may have become others."""
        known = {*self.held, *self.renumbered, *self.pins}
        for key in [key for key in known if key[0] == stream and consumer in ("", key[1])]:
            self.held.pop(key, None)
            self.settled.pop(key, None)
            self.pins.pop(key, None)
            self.renumbered.discard(key)

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
        return await side.call(api.StreamCreate(config=_config(side, self.name, self.config)))


@dataclass(frozen=True, repr=False)
class UpdateStream(Step):
    config: dict[str, Any] = field(default_factory=dict)
    name: str = "S"

    async def run(self, side: Side) -> Any:
        return await side.call(api.StreamUpdate(config=_config(side, self.name, self.config)))


def _config(side: Side, name: str, given: dict[str, Any]) -> api.StreamConfig:
    return msgspec.convert({"name": side.real(name), **given}, api.StreamConfig, dec_hook=api.dec_hook)


@dataclass(frozen=True, repr=False)
class DeleteStream(Step):
    name: str = "S"

    async def run(self, side: Side) -> Any:
        reply = await side.call(api.StreamDelete(name=side.real(self.name)))
        side.deleted(self.name)
        return reply


@dataclass(frozen=True, repr=False)
class LookAtStream(Step):
    name: str = "S"
    subjects_filter: str = ""
    offset: int = 0
    deleted_details: bool = False

    async def run(self, side: Side) -> Any:
        return await side.call(
            api.StreamInfoRequest(
                name=side.real(self.name),
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
class Purge(Step):
    name: str = "S"
    filter: str = ""
    seq: int = 0
    keep: int = 0

    async def run(self, side: Side) -> Any:
        name = side.real(self.name)
        return await side.call(api.StreamPurge(name=name, filter=self.filter, seq=self.seq, keep=self.keep))


@dataclass(frozen=True, repr=False)
class GetMessage(Step):
    stream: str = "S"
    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""

    async def run(self, side: Side) -> Any:
        asked = {"seq": self.seq, "last_by_subj": self.last_by_subj, "next_by_subj": self.next_by_subj}
        return await side.call(msgspec.convert({"stream": side.real(self.stream), **asked}, api.MsgGet))


@dataclass(frozen=True, repr=False)
class DeleteMessage(Step):
    seq: int = 1
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        return await side.call(api.MsgDelete(stream=side.real(self.stream), seq=self.seq))


@dataclass(frozen=True, repr=False)
class DirectGet(Step):
    asked: dict[str, Any] = field(default_factory=dict)
    stream: str = "S"

    async def run(self, side: Side) -> Any:
        request = msgspec.convert(self.asked, api.DirectGet)
        return await side.jet.backend.direct_get(side.real(self.stream), request)
