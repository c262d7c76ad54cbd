"""Making, opening, listing and removing buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, TypeVar

from pelton.api import BucketNotFoundError, ConfigError, Placement, Republish, StreamConfig, StreamNotFoundError
from pelton.api.build import seconds_to_ns
from pelton.api.config import Storage
from pelton.api.times import SECOND, Seconds
from pelton.buckets.bucket import Bucket
from pelton.buckets.naming import STREAM_PREFIX, all_subjects, stream_of
from pelton.jet import Streams

T = TypeVar("T")
_LONGEST_HISTORY: Final = 64
_DUPLICATES: Final = 120 * SECOND


class BucketSettings(TypedDict, total=False):
    """What a bucket can be made with: how many revisions of a key it keeps (1 to 64), and for how long (``ttl``);

    ``limit_marker_ttl`` allows keys a time to live of their own, and is how long the end of one is told to watchers;
    ``compression``, limits, and where a cluster keeps it. Durations are seconds or ``timedelta``.
    """

    history: int
    ttl: Seconds
    limit_marker_ttl: Seconds
    max_value_size: int
    max_bytes: int
    storage: Storage
    replicas: int
    description: str
    compression: bool
    placement: Placement | Mapping[str, Any] | None
    republish: Republish | Mapping[str, Any] | None
    metadata: Mapping[str, str] | None


async def open_bucket(jet: Streams, name: str, kind: type[T] | None) -> Bucket[T]:
    """Return a bucket that exists. Raises BucketNotFoundError, ConfigError."""
    try:
        stream = await jet.stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name) from None
    return Bucket(jet, stream, name, kind)


async def create_bucket(
    jet: Streams,
    name: str,
    kind: type[T] | None,
    *,
    history: int = 1,
    ttl: Seconds = 0,
    limit_marker_ttl: Seconds = 0,
    max_value_size: int = -1,
    max_bytes: int = -1,
    storage: Storage = "file",
    replicas: int = 1,
    description: str = "",
    compression: bool = False,
    placement: Placement | Mapping[str, Any] | None = None,
    republish: Republish | Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Bucket[T]:
    """Make a bucket, or return the one there is with the same settings. Raises ConfigError, ApiError."""
    if not 1 <= history <= _LONGEST_HISTORY:
        raise ConfigError(f"bucket {name!r}: history is {history}, it can be 1 to {_LONGEST_HISTORY}")
    age, marker = seconds_to_ns("ttl", ttl), seconds_to_ns("limit_marker_ttl", limit_marker_ttl)
    config = StreamConfig(
        name=stream_of(name),
        description=description,
        subjects=(all_subjects(name),),
        max_msgs_per_subject=history,
        max_bytes=max_bytes,
        max_age=age,
        max_msg_size=max_value_size,
        storage=storage,
        num_replicas=replicas,
        discard="new",
        duplicate_window=min(age, _DUPLICATES) if age else _DUPLICATES,
        compression="s2" if compression else "none",
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        allow_msg_ttl=marker > 0,
        subject_delete_marker_ttl=marker,
        metadata=dict(metadata or {}),
    )
    stream = await jet.create_stream(config, **_given(placement=placement, republish=republish))
    return Bucket(jet, stream, name, kind)


def _given(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def delete_bucket(jet: Streams, name: str) -> None:
    """Remove a bucket with all its keys. Raises BucketNotFoundError."""
    try:
        await jet.delete_stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name) from None


async def bucket_names(jet: Streams) -> list[str]:
    """Return the names of all buckets."""
    return [name.removeprefix(STREAM_PREFIX) for name in await jet.stream_names() if name.startswith(STREAM_PREFIX)]
