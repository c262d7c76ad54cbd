"""Copies the consumers of a stream, and how far each has come.

A copied consumer continues behind the original's ack floor. What was acknowledged above it, which only a store file
can tell, is acknowledged in the copy as well; what was delivered and not acknowledged is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pelton.api import (
    ApiError,
    ConfigError,
    ConsumerInfo,
    ConsumerList,
    ConsumerReset,
    ConsumerUnsettled,
)
from pelton.jet import Consumer, Message, Stream, Streams

_PAGE: Final = 256


async def copy_consumers(there: Streams, one: Streams, stream: str, copy: Stream, lost: list[str]) -> tuple[str, ...]:
    """Create the durable consumers of a stream at its copy, each where it was; return their names."""
    done: list[str] = []
    for info in await _infos(one, stream):
        if not info.config.durable_name:
            continue
        name = f"consumer {stream} > {info.name}"
        try:
            consumer = await copy.create_consumer(info.config)
            if info.delivered.stream_seq:
                await _place(there, one, info, consumer)
        except (ConfigError, ApiError) as error:
            lost.append(f"{name}: it was left out: {error}")
            continue
        done.append(info.name)
        lost += [f"{name}: {text}" for text in _losses(one, info)]
    return tuple(done)


def _losses(one: Streams, info: ConsumerInfo) -> Iterator[str]:
    if info.num_ack_pending:
        yield f"{info.num_ack_pending} deliveries that were not acknowledged are delivered again"
    acked = info.delivered.stream_seq - info.ack_floor.stream_seq - info.num_ack_pending
    if acked > 0 and info.config.ack_policy == "explicit" and not _tells_unsettled(one):
        yield f"a cluster does not tell what was acknowledged above the ack floor: up to {acked} are delivered again"


def _tells_unsettled(jet: Streams) -> bool:
    return ConsumerUnsettled in jet.backend.planning.own_verbs


async def _infos(jet: Streams, stream: str) -> list[ConsumerInfo]:
    infos: list[ConsumerInfo] = []
    while True:
        page = await jet.backend.call(ConsumerList(stream=stream, offset=len(infos)))
        infos += page.consumers
        if not page.consumers or len(infos) >= page.total:
            return infos


async def _place(there: Streams, one: Streams, info: ConsumerInfo, consumer: Consumer) -> None:
    config, copy = info.config, consumer.stream_name
    floor = info.delivered.stream_seq if config.ack_policy == "none" else info.ack_floor.stream_seq
    await there.backend.call(ConsumerReset(stream=copy, name=consumer.name, seq=floor + 1))
    if config.ack_policy != "explicit" or config.deliver_subject or not _tells_unsettled(one):
        return
    pending = await _unsettled(one, info)
    left = (await consumer.info()).num_pending - info.num_pending
    held: list[Message] = []
    # What is not pending up to there was acknowledged.
    while left > 0 and (found := await consumer.fetch(min(left, _PAGE), no_wait=True)):
        left -= len(found)
        for message in found:
            if message.delivered.seq in pending:
                held.append(message)
            else:
                await message.ack()
    for message in held:
        await message.nak()


async def _unsettled(jet: Streams, info: ConsumerInfo) -> set[int]:
    found: set[int] = set()
    while True:
        request = ConsumerUnsettled(stream=info.stream_name, name=info.name, offset=len(found))
        page = await jet.backend.call(request)
        found.update(entry.seq for entry in page.messages)
        if not page.messages or len(found) >= page.total:
            return found
