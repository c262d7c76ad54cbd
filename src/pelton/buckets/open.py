"""Creates, opens, updates, lists and removes buckets."""

from __future__ import annotations

from typing import Final, TypeVar, Unpack

from pelton.api import ApiError, BucketNotFoundError, StreamNotFoundError
from pelton.buckets.bucket import Bucket
from pelton.buckets.codecs import Codec
from pelton.buckets.naming import STREAM_PREFIX, stream_of
from pelton.buckets.settings import BucketSettings, as_others_limit, changed_config, new_config
from pelton.jet import Stream, Streams

T = TypeVar("T")
_EXISTS: Final = 10058


async def open_bucket(jet: Streams, name: str, kind: type[T] | None, codec: Codec | None) -> Bucket[T]:
    """Return an existing bucket. Raises BucketNotFoundError, ConfigError."""
    return Bucket(jet, await _stream(jet, name), name, kind, codec)


async def create_bucket(
    jet: Streams, name: str, kind: type[T] | None, codec: Codec | None = None, **settings: Unpack[BucketSettings]
) -> Bucket[T]:
    """Create a bucket, or return the existing one if its settings are the same. Raises ConfigError, ApiError."""
    config = new_config(name, settings)
    try:
        stream = await jet.create_stream(config)
    except ApiError as error:
        others = as_others_limit(config)
        if error.err_code != _EXISTS or others == config:
            raise
        stream = await jet.create_stream(others)
    return Bucket(jet, stream, name, kind, codec)


async def update_bucket(jet: Streams, name: str, **settings: Unpack[BucketSettings]) -> Bucket[bytes]:
    """Change settings of a bucket; the others stay. Raises BucketNotFoundError, ConfigError, ApiError."""
    base = (await _stream(jet, name)).config
    return Bucket(jet, await jet.update_stream(changed_config(base, name, settings)), name, None, None)


async def _stream(jet: Streams, name: str) -> Stream:
    try:
        return await jet.stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name) from None


async def delete_bucket(jet: Streams, name: str) -> None:
    """Remove a bucket with all its keys. Raises BucketNotFoundError."""
    try:
        await jet.delete_stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name) from None


async def bucket_names(jet: Streams) -> list[str]:
    """Return the names of all buckets."""
    return [name.removeprefix(STREAM_PREFIX) for name in await jet.stream_names() if name.startswith(STREAM_PREFIX)]
