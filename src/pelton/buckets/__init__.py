"""Key-value buckets (ADR-8) and object stores (ADR-20) over a stream each, as every NATS client writes them."""

from pelton.buckets.bucket import (
    Bucket,
    bucket_names,
    create_bucket,
    delete_bucket,
    open_bucket,
    reserve_first_token,
    update_bucket,
    written_through,
)
from pelton.buckets.bucket_settings import BucketOrigin, BucketSettings
from pelton.buckets.coding import Base64Codec, BucketStatus, ChainCodec, Codec, Entry, Operation, PathCodec, SplitCodec
from pelton.buckets.object_info import ObjectInfo, ObjectLink, ObjectStatus
from pelton.buckets.object_store import (
    ObjectSettings,
    ObjectStore,
    create_objects,
    delete_objects,
    objects_names,
    open_objects,
)

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
