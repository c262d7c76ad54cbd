"""A store or cluster as a whole: its streams and consumers, buckets, locks and elections."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Final

from pelton.api import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerList,
    MessageNotFoundError,
    MsgGet,
    StoredMessage,
    StreamConfig,
    StreamInfo,
    StreamInfoRequest,
    StreamList,
    StreamNotFoundError,
    rfc3339,
)
from pelton.api.times import SECOND, ZERO_TIME, parse_rfc3339
from pelton.buckets.coding import operation_of
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.jet.stream import AUDIT_STREAM, list_all
from pelton.locks.lock_table import BUCKET, Holding, Kind, holding_of, ticket_of
from pelton.observe.summaries import (
    BucketSummary,
    ConsumerSummary,
    ElectionSummary,
    LockSummary,
    ObjectsSummary,
    StoreSummary,
    StreamKind,
    StreamSummary,
)
from pelton.storage import leafs_noted, standby_lags, writer_hold

QUEUE_MARK: Final = "pelton.queue.exclusive"
INTERNAL: Final[frozenset[StreamKind]] = frozenset({"queue", "locks", "election"})
"""What Pelton fills itself: its consumers come and go with workers and tenants; who knows queues knows none of them."""
_LOCKS: Final = ("KV_pelton_locks", "KV_pelton_tokens")
_PREFIXES: Final[tuple[tuple[str, StreamKind], ...]] = (
    ("KV_ELECTION_", "election"),
    ("KV_", "bucket"),
    ("OBJ_", "objects"),
)
_QUEUE_SUBJECTS: Final = "$JOBS."


async def stream_infos(jet: Jet) -> list[StreamInfo]:
    """Return the infos of all streams, by name, but for the audit: a look at a store shows what its users made."""
    found = await list_all(jet.backend, StreamList(), attrgetter("streams"))
    return [info for info in found if info.config.name != AUDIT_STREAM]


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
    return await list_all(jet.backend, ConsumerList(stream=stream), attrgetter("consumers"))


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


async def stream_rates(jet: Jet, info: StreamInfo, moments: Sequence[int]) -> list[tuple[int, float]]:
    """Return how many messages a second the stream of an ``info`` has stored before each of some ``moments``.

    It counts from the moment before. Sequences and times of the messages tell it, so it goes back as far as there are
    messages. Nanoseconds; each moment is one question.
    """
    state, found, before = info.state, list[tuple[int, float]](), -1
    if not state.messages:
        return []
    first_at = parse_rfc3339(state.first_ts) if state.first_seq > 1 else 0
    for number, moment in enumerate(moments):
        if moment < first_at:
            continue
        seq = await _seq_at(jet, info, moment)
        if before >= 0:
            found.append((moment, max(seq - before, 0) * SECOND / (moment - moments[number - 1])))
        before = seq
    return found


async def _seq_at(jet: Jet, info: StreamInfo, moment: int) -> int:
    """Return the first sequence that was stored at a moment or later."""
    try:
        found = await jet.backend.call(MsgGet(stream=info.config.name, start_time=rfc3339(moment), next_by_subj=">"))
    except MessageNotFoundError:
        return info.state.last_seq + 1
    return found.message.seq


# --- a store or cluster as a whole


async def store_summary(jet: Jet, path: str = "") -> StoreSummary:
    """Return the sums over all streams; ``path`` is the file of the store, if it has one."""
    infos = await stream_infos(jet)
    names, now = [info.config.name for info in infos], jet.runtime.clock.now()
    hold = writer_hold(path, jet.runtime.clock.boottime()) if path else None
    return StoreSummary(
        streams=len(infos),
        consumers=sum(info.state.consumer_count for info in infos),
        messages=sum(info.state.messages for info in infos),
        bytes=sum(info.state.bytes for info in infos),
        queues=sum(QUEUE_MARK in info.config.metadata for info in infos),
        buckets=sum(kind_of(info.config) == "bucket" for info in infos),
        object_stores=sum(name.startswith("OBJ_") for name in names),
        file_bytes=size_of(path),
        log_bytes=size_of(f"{path}-wal") if path else 0,
        writer_pid=0 if hold is None else hold.pid,
        writer_held=0.0 if hold is None else hold.seconds,
        hubs=leafs_noted(path) if path else (),
        standbys=standby_lags(path, sum(info.state.last_seq for info in infos), now) if path else (),
    )


def size_of(path: str) -> int:
    """Return the size of a file; 0 if it is not there."""
    try:
        return os.path.getsize(path) if path else 0
    except OSError:
        return 0


# --- key-value buckets and object stores

_KEYS: Final = "KV_"
_OBJECTS: Final = "OBJ_"


async def bucket_summaries(jet: Jet) -> list[BucketSummary]:
    """Return all key-value buckets, by name; those of locks and elections are among them."""
    return [
        BucketSummary(
            name=info.config.name.removeprefix(_KEYS),
            values=info.state.messages,
            keys=info.state.num_subjects,
            bytes=info.state.bytes,
            history=max(info.config.max_msgs_per_subject, 1),
            ttl=info.config.max_age.seconds,
            storage=info.config.storage,
            replicas=info.config.num_replicas,
            last_at=known_time(info.state.last_ts),
        )
        for info in await infos_named(jet, _KEYS)
    ]


async def object_summaries(jet: Jet) -> list[ObjectsSummary]:
    """Return all object stores, by name."""
    return [
        ObjectsSummary(
            name=info.config.name.removeprefix(_OBJECTS),
            bytes=info.state.bytes,
            ttl=info.config.max_age.seconds,
            storage=info.config.storage,
            replicas=info.config.num_replicas,
            last_at=known_time(info.state.last_ts),
        )
        for info in await infos_named(jet, _OBJECTS)
    ]


# --- locks and elections: who holds what, since when, under which token

_PREFIX: Final = f"$KV.{BUCKET}."
_TICKET: Final = "line"
_KINDS: Final[dict[str, Kind]] = {"lock": "lock", "semaphore": "semaphore"}
_ELECTIONS: Final = "KV_ELECTION_"


async def lock_summaries(jet: Jet) -> list[LockSummary]:
    """Return the locks and slots of semaphores that are held, by name."""
    try:
        stream = await jet.stream(f"KV_{BUCKET}")
    except StreamNotFoundError:
        return []
    now = jet.runtime.clock.now()
    held: list[tuple[str, Holding, StoredMessage]] = []
    waiting: Counter[str] = Counter()
    async for message in _all_messages(stream):
        key = message.subject.removeprefix(_PREFIX)
        data = message.data if operation_of(message.hdrs) == "put" else None
        if key.startswith(f"{_TICKET}."):
            if ticket_of(data) is not None:
                # line.KIND.NAME.ID
                waiting[key.partition(".")[2].rpartition(".")[0]] += 1
        elif (holding := holding_of(data)) is not None and message.time_ns + holding.ttl * SECOND > now:
            held.append((key, holding, message))
    found = [_lock(key, holding, message, waiting) for key, holding, message in held]
    return sorted(found, key=lambda one: (one.kind, one.name, one.slot))


def _lock(key: str, holding: Holding, message: StoredMessage, waiting: Counter[str]) -> LockSummary:
    kind, _, name = key.partition(".")
    slot = "0"
    if _KINDS[kind] == "semaphore":
        name, _, slot = name.rpartition(".")
    is_first = holding.token in (0, message.seq)
    since = holding.since or (message.time_ns if is_first else 0)
    return LockSummary(
        kind=_KINDS[kind],
        name=name,
        slot=int(slot),
        holder=holding.who,
        token=holding.token or message.seq,
        since=rfc3339(since) if since else "",
        renewed_at=rfc3339(message.time_ns),
        ttl=float(holding.ttl),
        waiting=waiting[f"{kind}.{name}"],
    )


async def _all_messages(stream: Stream) -> AsyncIterator[StoredMessage]:
    seq = 1
    while page := await stream.get_messages(seq=seq):
        for message in page:
            yield message
        seq = page[-1].seq + 1


async def election_summaries(jet: Jet, bucket: str = "", key: str = "") -> list[ElectionSummary]:
    """Return the elections with a bucket of their own, by name; or the one (``key``) in ``bucket``."""
    if bucket:
        places = [(bucket, key or bucket.removeprefix("ELECTION_"))]
    else:
        names = [name for name in await jet.stream_names() if name.startswith(_ELECTIONS)]
        places = [(name.removeprefix("KV_"), name.removeprefix(_ELECTIONS)) for name in names]
    return [await _election(jet, where, name) for where, name in places]


async def _election(jet: Jet, bucket: str, key: str) -> ElectionSummary:
    leader = await jet.elect(key, bucket=bucket, name="an observer").leader()
    ttl = (await (await jet.bucket(bucket)).status()).ttl
    now = jet.runtime.clock.now()
    if leader is None or leader.renewed_ns + ttl * SECOND <= now:
        return ElectionSummary(bucket=bucket, election=key, leader="", token=0, since="", renewed_at="", ttl=ttl)
    return ElectionSummary(
        bucket=bucket,
        election=key,
        leader=leader.name,
        token=leader.token,
        since=leader.since,
        renewed_at=rfc3339(leader.renewed_ns),
        ttl=ttl,
    )
