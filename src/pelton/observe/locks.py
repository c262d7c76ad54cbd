"""Locks and elections: who holds what, since when, under which token."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from pelton.api import StoredMessage, StreamNotFoundError, rfc3339
from pelton.api.times import SECOND
from pelton.buckets.entry import operation_of
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.locks.records import Holding, Kind, holding_of, ticket_of
from pelton.locks.table import BUCKET
from pelton.observe.summaries import ElectionSummary, LockSummary

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
