"""Creates, opens, lists and removes object stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, Unpack

from pelton.api import BucketNotFoundError, Placement, StreamConfig, StreamNotFoundError
from pelton.api.arguments import check_known, check_whole, texts_of
from pelton.api.build import changed
from pelton.api.config import Storage
from pelton.api.durations import given
from pelton.api.times import Seconds
from pelton.buckets.objects.naming import STREAM_PREFIX, all_metas, chunk_subject, stream_of
from pelton.buckets.objects.store import ObjectStore
from pelton.jet import Streams

_SAME: Final = ("max_bytes", "storage", "description")


class ObjectSettings(TypedDict, total=False):
    """Settings of an object store: how long it keeps objects (``ttl``, seconds or ``timedelta``), how many
    bytes it takes in total (``max_bytes``), ``compression``, and where a cluster keeps it.
    """

    ttl: Seconds
    """How long an object is kept, in seconds."""
    max_bytes: int
    """The largest store, in bytes."""
    storage: Storage
    """In a `file` (default) or in `memory`, on servers."""
    replicas: int
    """How many servers of a cluster keep it (default 1)."""
    description: str
    """A text for people."""
    compression: bool
    """Whether chunks are compressed."""
    placement: Placement | Mapping[str, Any] | None
    """Where a cluster keeps it."""
    metadata: Mapping[str, str] | None
    """Texts for programs."""


async def open_objects(jet: Streams, name: str) -> ObjectStore:
    """Return an existing object store. Raises BucketNotFoundError, ConfigError."""
    try:
        stream = await jet.stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name, "create_objects") from None
    return ObjectStore(jet, stream, name)


async def create_objects(jet: Streams, name: str, **settings: Unpack[ObjectSettings]) -> ObjectStore:
    """Create an object store, or return the existing one if its settings are the same. Raises ConfigError, ApiError."""
    about = f"object store {name!r}"
    check_known(about, settings, ObjectSettings.__annotations__)
    config = StreamConfig(
        name=stream_of(name),
        subjects=(chunk_subject(name, ">"), all_metas(name)),
        discard="new",
        compression="s2" if settings.get("compression") else "none",
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    replicas = settings.get("replicas", 1)
    check_whole(about, "replicas", replicas)
    fields: dict[str, Any] = {"max_age": given(f"{about}: ttl", settings.get("ttl", 0)), "num_replicas": replicas}
    fields |= {field: settings[field] for field in _SAME if field in settings}
    if settings.get("placement") is not None:
        fields["placement"] = settings["placement"]
    fields["metadata"] = texts_of(about, "metadata", settings.get("metadata"))
    return ObjectStore(jet, await jet.create_stream(changed(config, fields, about)), name)


async def delete_objects(jet: Streams, name: str) -> None:
    """Remove an object store with all its objects. Raises BucketNotFoundError."""
    try:
        await jet.delete_stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name, "create_objects") from None


async def objects_names(jet: Streams) -> list[str]:
    """Return the names of all object stores."""
    return [name.removeprefix(STREAM_PREFIX) for name in await jet.stream_names() if name.startswith(STREAM_PREFIX)]
