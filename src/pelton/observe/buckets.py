"""Key-value buckets and object stores."""

from __future__ import annotations

from typing import Final

from pelton.connect import Jet
from pelton.observe.streams import infos_named, known_time
from pelton.observe.summaries import BucketSummary, ObjectsSummary

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
