"""Key-value buckets (ADR-8) and object stores (ADR-20) over a stream each, as every NATS client writes them."""

from pelton.buckets.bucket import Bucket, written_through
from pelton.buckets.codecs import Base64Codec, ChainCodec, Codec, PathCodec, SplitCodec
from pelton.buckets.entry import BucketStatus, Entry, Operation
from pelton.buckets.objects import (
    ObjectInfo,
    ObjectLink,
    ObjectSettings,
    ObjectStatus,
    ObjectStore,
    create_objects,
    delete_objects,
    objects_names,
    open_objects,
)
from pelton.buckets.open import bucket_names, create_bucket, delete_bucket, open_bucket, update_bucket
from pelton.buckets.settings import BucketOrigin, BucketSettings
from pelton.buckets.token_floors import reserve_first_token

__all__ = [
    "Base64Codec",
    "Bucket",
    "BucketOrigin",
    "BucketSettings",
    "BucketStatus",
    "ChainCodec",
    "Codec",
    "Entry",
    "ObjectInfo",
    "ObjectLink",
    "ObjectSettings",
    "ObjectStatus",
    "ObjectStore",
    "Operation",
    "PathCodec",
    "SplitCodec",
    "bucket_names",
    "create_bucket",
    "create_objects",
    "delete_bucket",
    "delete_objects",
    "objects_names",
    "open_bucket",
    "open_objects",
    "reserve_first_token",
    "update_bucket",
    "written_through",
]
