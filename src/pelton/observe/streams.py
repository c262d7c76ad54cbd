"""Streams and consumers."""

from __future__ import annotations

from typing import Final

from pelton.api import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerList,
    StreamConfig,
    StreamInfo,
    StreamInfoRequest,
    StreamList,
    StreamNotFoundError,
)
from pelton.api.times import ZERO_TIME
from pelton.connect import Jet
from pelton.observe.summaries import ConsumerSummary, StreamKind, StreamSummary

QUEUE_MARK: Final = "pelton.queue.exclusive"
_LOCKS: Final = ("KV_pelton_locks", "KV_pelton_tokens")
_PREFIXES: Final[tuple[tuple[str, StreamKind], ...]] = (
    ("KV_ELECTION_", "election"),
    ("KV_", "bucket"),
    ("OBJ_", "objects"),
)
_QUEUE_SUBJECTS: Final = "$JOBS."


async def stream_infos(jet: Jet) -> list[StreamInfo]:
    """Return the infos of all streams, by name."""
    infos: list[StreamInfo] = []
    while True:
        page = await jet.backend.call(StreamList(offset=len(infos)))
        infos += page.streams
        if not page.streams or len(infos) >= page.total:
            return infos


async def infos_named(jet: Jet, prefix: str) -> list[StreamInfo]:
    """Return the infos of the streams whose names begin so, by name; the others, which may be large, are not asked."""
    names = [name for name in await jet.stream_names() if name.startswith(prefix)]
    return [info for name in names if (info := await _info(jet, name)) is not None]


async def _info(jet: Jet, name: str) -> StreamInfo | None:
    try:
        return await jet.backend.call(StreamInfoRequest(name=name))
    except StreamNotFoundError:
        # It was deleted after it was listed.
        return None


async def stream_summaries(jet: Jet) -> list[StreamSummary]:
    """Return all streams, by name."""
    return [stream_summary(info) for info in await stream_infos(jet)]


def stream_summary(info: StreamInfo) -> StreamSummary:
    """Return what operators see of a stream."""
    config, state = info.config, info.state
    return StreamSummary(
        name=config.name,
        kind=kind_of(config),
        subjects=config.subjects,
        retention=config.retention,
        storage=config.storage,
        messages=state.messages,
        bytes=state.bytes,
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        last_at=known_time(state.last_ts),
        num_subjects=state.num_subjects,
        consumers=state.consumer_count,
        replicas=config.num_replicas,
        max_messages=config.max_msgs if config.max_msgs > 0 else -1,
        max_bytes=config.max_bytes if config.max_bytes > 0 else -1,
    )


def kind_of(config: StreamConfig) -> StreamKind:
    """Return what a stream is used for."""
    if config.name in _LOCKS:
        return "locks"
    if any(subject.startswith(_QUEUE_SUBJECTS) for subject in config.subjects):
        return "queue"
    return next((kind for prefix, kind in _PREFIXES if config.name.startswith(prefix)), "stream")


def known_time(text: str) -> str:
    """Return a time; empty for the one that stands for none."""
    return "" if text == ZERO_TIME else text


async def consumer_infos(jet: Jet, stream: str) -> list[ConsumerInfo]:
    """Return the infos of a stream's consumers, by name. Raises StreamNotFoundError."""
    infos: list[ConsumerInfo] = []
    while True:
        page = await jet.backend.call(ConsumerList(stream=stream, offset=len(infos)))
        infos += page.consumers
        if not page.consumers or len(infos) >= page.total:
            return infos


async def consumer_summaries(jet: Jet, stream: str = "") -> list[ConsumerSummary]:
    """Return the consumers of a stream, or of all streams. Raises StreamNotFoundError."""
    if stream:
        last = (await jet.backend.call(StreamInfoRequest(name=stream))).state.last_seq
        return [consumer_summary(info, last) for info in await consumer_infos(jet, stream)]
    if not jet.backend.planning.overlapping_pulls:
        # An answer takes no round trip, so many small questions are cheaper than a large one.
        return [one for name in await jet.stream_names() for one in await _consumers_of(jet, name)]
    return [
        consumer_summary(info, each.state.last_seq)
        for each in await stream_infos(jet)
        if each.state.consumer_count
        for info in await consumer_infos(jet, each.config.name)
    ]


async def _consumers_of(jet: Jet, stream: str) -> list[ConsumerSummary]:
    try:
        infos = await consumer_infos(jet, stream)
    except StreamNotFoundError:
        return []
    if not infos or (of := await _info(jet, stream)) is None:
        return []
    return [consumer_summary(info, of.state.last_seq) for info in infos]


def consumer_summary(info: ConsumerInfo, last_seq: int) -> ConsumerSummary:
    """Return what operators see of a consumer of a stream whose last sequence is ``last_seq``."""
    return ConsumerSummary(
        stream=info.stream_name,
        name=info.name,
        durable=bool(info.config.durable_name),
        filters=filters_of(info.config),
        pending=info.num_pending,
        ack_pending=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting_pulls=info.num_waiting,
        delivered_seq=info.delivered.stream_seq,
        deliveries=info.delivered.consumer_seq,
        ack_floor=info.ack_floor.stream_seq,
        ack_floor_delivery=info.ack_floor.consumer_seq,
        lag=max(last_seq - max(info.ack_floor.stream_seq, 0), 0) if info.num_pending or info.num_ack_pending else 0,
        last_delivered_at=info.delivered.last_active,
        last_ack_at=info.ack_floor.last_active,
        paused=info.paused,
    )


def filters_of(config: ConsumerConfig) -> tuple[str, ...]:
    """Return the filters of a consumer; empty if it takes every subject."""
    return (config.filter_subject,) if config.filter_subject else tuple(config.filter_subjects)
