"""Key-value buckets over a stream each: on every backend, and as every NATS client writes them (ADR-8)."""

from pelton.buckets.bucket import Bucket
from pelton.buckets.entry import BucketStatus, Entry, Operation
from pelton.buckets.open import BucketSettings, bucket_names, create_bucket, delete_bucket, open_bucket

__all__ = [
    "Bucket",
    "BucketSettings",
    "BucketStatus",
    "Entry",
    "Operation",
    "bucket_names",
    "create_bucket",
    "delete_bucket",
    "open_bucket",
]
