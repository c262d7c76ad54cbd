"""Object stores, each over one stream: on every backend, and compatible with every NATS client (ADR-20)."""

from pelton.buckets.objects.info import ObjectInfo, ObjectLink, ObjectStatus
from pelton.buckets.objects.open import ObjectSettings, create_objects, delete_objects, objects_names, open_objects
from pelton.buckets.objects.store import ObjectStore

__all__ = [
    "ObjectInfo",
    "ObjectLink",
    "ObjectSettings",
    "ObjectStatus",
    "ObjectStore",
    "create_objects",
    "delete_objects",
    "objects_names",
    "open_objects",
]
