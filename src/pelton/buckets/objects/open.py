"""Making, opening, listing and removing object stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from pelton.api import BucketNotFoundError, Placement, StreamConfig, StreamNotFoundError
from pelton.api.build import seconds_to_ns
from pelton.api.config import Storage
from pelton.api.times import Seconds
from pelton.buckets.objects.naming import STREAM_PREFIX, all_metas, chunk_subject, stream_of
from pelton.buckets.objects.store import ObjectStore
from pelton.jet import Streams


class ObjectSettings(TypedDict, total=False):
    """What an object store can be made with: how long it keeps objects (``ttl``, seconds or ``timedelta``), how many
    bytes it takes with all there is (``max_bytes``), ``compression``, and where a cluster keeps it.
    """

    ttl: Seconds
    max_bytes: int
    storage: Storage
    replicas: int
    description: str
    compression: bool
    placement: Placement | Mapping[str, Any] | None
    metadata: Mapping[str, str] | None


async def open_objects(jet: Streams, name: str) -> ObjectStore:
    """Return an object store that exists. Raises BucketNotFoundError, ConfigError."""
    try:
        stream = await jet.stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name, "create_objects") from None
    return ObjectStore(jet, stream, name)


async def create_objects(
    jet: Streams,
    name: str,
    *,
    ttl: Seconds = 0,
    max_bytes: int = -1,
    storage: Storage = "file",
    replicas: int = 1,
    description: str = "",
    compression: bool = False,
    placement: Placement | Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> ObjectStore:
    """Make an object store, or return the one there is with the same settings. Raises ConfigError, ApiError."""
    config = StreamConfig(
        name=stream_of(name),
        description=description,
        subjects=(chunk_subject(name, ">"), all_metas(name)),
        max_bytes=max_bytes,
        max_age=seconds_to_ns("ttl", ttl),
        storage=storage,
        num_replicas=replicas,
        discard="new",
        compression="s2" if compression else "none",
        allow_rollup_hdrs=True,
        allow_direct=True,
        metadata=dict(metadata or {}),
    )
    placed = {} if placement is None else {"placement": placement}
    return ObjectStore(jet, await jet.create_stream(config, **placed), name)


async def delete_objects(jet: Streams, name: str) -> None:
    """Remove an object store with all its objects. Raises BucketNotFoundError."""
    try:
        await jet.delete_stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name, "create_objects") from None


async def objects_names(jet: Streams) -> list[str]:
    """Return the names of all object stores."""
    return [name.removeprefix(STREAM_PREFIX) for name in await jet.stream_names() if name.startswith(STREAM_PREFIX)]
