"""Object stores, each over one stream: on every backend, and compatible with every NATS client (ADR-20)."""

from pelton.buckets.objects.object_info import ObjectInfo, ObjectLink, ObjectStatus
from pelton.buckets.objects.object_store import (
    ObjectSettings,
    ObjectStore,
    create_objects,
    delete_objects,
    objects_names,
    open_objects,
)

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
