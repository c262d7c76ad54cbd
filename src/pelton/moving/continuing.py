"""What goes on in the copy of a stream where it was: its durable consumers, and on a cluster fencing tokens.

Tokens of a store file are counted from a floor that the file knows; a cluster counts those of an exclusive queue by the
sequences of a stream, and those of a plain one from a number in its configuration. Both begin above all that the file
has given, so that whoever remembers the largest token does not take the copy's for those of a worker that was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from pelton.api import (
    ApiError,
    BucketNotFoundError,
    ConfigError,
    ConsumerInfo,
    ConsumerList,
    ConsumerReset,
    ConsumerUnsettled,
    StreamConfig,
)
from pelton.buckets import open_bucket, reserve_first_token
from pelton.buckets.bucket import TOKENS_BUCKET, raise_first_tokens
from pelton.engine.read_only_engine import ReadOnlyEngine
from pelton.jet import Consumer, Message, Stream, Streams
from pelton.jet.stream import list_all
from pelton.moving.configs import is_exclusive_on_file
from pelton.queue.setup import EXCLUSIVE, KEYS, TOKENS
from pelton.storage.standby import highest_token_floor

_FETCHED_AT_ONCE: Final = 256
# With more, all above the ack floor is delivered again.
_MOST_UNSETTLED: Final = 50_000


class KeptConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as it was, and which messages it had delivered that were not settled; None: too many."""

    info: ConsumerInfo
    unsettled: tuple[int, ...] | None


class KeptStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as it was, with its durable consumers. ``is_apart``: it has fencing tokens, and is kept elsewhere."""

    config: StreamConfig
    created: str
    last_seq: int
    is_apart: bool
    consumers: tuple[KeptConsumer, ...]


async def copy_consumers(there: Streams, one: Streams, stream: str, copy: Stream, lost: list[str]) -> tuple[str, ...]:
    """Create the durable consumers of a stream at its copy, each where it was; return their names."""
    done: list[str] = []
    for info in await list_all(one.backend, ConsumerList(stream=stream), attrgetter("consumers")):
        if not info.config.durable_name:
            continue
        name = f"consumer {stream} > {info.name}"
        try:
            consumer = await copy.create_consumer(info.config)
            pending = await unsettled_sequences(one, info) if _tells_unsettled(one) else None
            await place_consumer(there, info, consumer, pending)
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


async def place_consumer(there: Streams, info: ConsumerInfo, consumer: Consumer, pending: set[int] | None) -> None:
    """Let a consumer go on where another one was, whose unsettled messages are ``pending``; None: not known."""
    config, copy = info.config, consumer.stream_name
    if not info.delivered.stream_seq:
        return
    floor = info.delivered.stream_seq if config.ack_policy == "none" else info.ack_floor.stream_seq
    await there.backend.call(ConsumerReset(stream=copy, name=consumer.name, seq=floor + 1))
    if config.ack_policy != "explicit" or config.deliver_subject or pending is None:
        return
    left = (await consumer.info()).num_pending - info.num_pending
    held: list[Message] = []
    # What is not pending up to there was acknowledged.
    while left > 0 and (found := await consumer.fetch(min(left, _FETCHED_AT_ONCE))):
        left -= len(found)
        for message in found:
            if message.delivered.seq in pending or message.delivered.seq > info.delivered.stream_seq:
                held.append(message)
            else:
                await message.ack()
    for message in held:
        await message.nak()


async def unsettled_sequences(jet: Streams, info: ConsumerInfo) -> set[int]:
    """Return which messages were delivered by a consumer of a file, and are not settled."""
    request = ConsumerUnsettled(stream=info.stream_name, name=info.name)
    return {entry.seq for entry in await list_all(jet.backend, request, attrgetter("messages"))}


async def kept_consumers(jet: Streams, stream: str) -> tuple[KeptConsumer, ...]:
    """Return the durable consumers of a stream of a file, as they are."""
    found = list[KeptConsumer]()
    for info in await list_all(jet.backend, ConsumerList(stream=stream), attrgetter("consumers")):
        if info.config.durable_name:
            few = info.num_ack_pending <= _MOST_UNSETTLED
            unsettled = tuple(sorted(await unsettled_sequences(jet, info))) if few else None
            found.append(KeptConsumer(info=replace(info, ts="", num_waiting=0, cluster=None), unsettled=unsettled))
    return tuple(found)


# --- fencing tokens, on a cluster


async def raise_tokens_above(here: Streams, there: Streams, names: Sequence[str], replicas: int) -> None:
    """Let the tokens of copied queues, and of streams that are made later, begin above all that a file has given."""
    engine = here.backend
    assert isinstance(engine, ReadOnlyEngine)
    queues = [name for name in names if EXCLUSIVE in (await here.stream(name)).config.metadata]
    begun = [f"{name}_{what}" for name in queues for what in ("keys", "tokens")]
    with engine.held() as database:
        above = highest_token_floor(database)
    with suppress(BucketNotFoundError):
        known = await open_bucket(here, TOKENS_BUCKET, int, None)
        async for name in known.keys():
            begun.append(name)
            above = max(above, (await known.get(name)).value or 0)
    if begun:
        await raise_first_tokens(there, above, begun, replicas)


async def with_first_token(there: Streams, config: StreamConfig, replicas: int) -> StreamConfig:
    """Return the configuration of a stream on a cluster, which says for a plain queue where its tokens begin."""
    if EXCLUSIVE not in config.metadata or is_exclusive_on_file(config) or KEYS in config.metadata:
        return config
    first = await reserve_first_token(there, f"{config.name}_tokens", replicas)
    return replace(config, metadata=config.metadata | {TOKENS: str(first)})
