"""Durable streams and exclusive work, embedded in a Python program.

async with pelton.open("garage.pelton") as jet:
    await jet.create_stream("orders", subjects=["orders.>"])
    await jet.publish("orders.eu.1", b"...")

A public name is loaded when it is first used, so that ``import pelton`` alone costs next to nothing. Type checkers
read ``__init__.pyi``, which ``tools/names_stub.py`` writes from the table below.
"""

from importlib import import_module

from pelton._version import VERSION

__version__ = VERSION

# Where each public name lives. The vocabulary is public as a whole: a name that is not here is looked up in pelton.api.
_HOMES = {
    "pelton.buckets": (
        "Base64Codec",
        "Bucket",
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
        "PathCodec",
        "SplitCodec",
    ),
    "pelton.connect": ("ClusterOptions", "Jet", "Leaf", "open"),
    "pelton.engine.upkeep": ("backup", "compact", "migrate", "rekey", "restore", "salvage", "verify"),
    "pelton.jet": ("Consumer", "CoreMessage", "Subscription", "Message", "Metadata", "Savepoint", "SqlReads", "Stream"),
    "pelton.locks": ("Election", "ElectionOptions", "LockLease", "Leader", "Lock", "Semaphore", "Term"),
    "pelton.queue": (
        "JobCall",
        "JobCodec",
        "CalledJob",
        "ClaimedJob",
        "Claims",
        "DeadLetter",
        "AsyncContextJob",
        "AsyncJob",
        "BatchDecorator",
        "BatchJob",
        "Job",
        "JobContext",
        "JobCounts",
        "JobDecorator",
        "JobDefinition",
        "QueueEvent",
        "QueueEvents",
        "JobHandle",
        "JobInfo",
        "JobLimit",
        "JobOptions",
        "JobProgress",
        "JobRules",
        "JobSchedule",
        "JobStep",
        "Flow",
        "FlowExtension",
        "FlowHandle",
        "FlowInfo",
        "FlowNode",
        "FlowNodeInfo",
        "FlowWithOptions",
        "JobTransaction",
        "JobWithOptions",
        "Jobs",
        "AttemptError",
        "Outcome",
        "Queue",
        "StepsWithOptions",
        "QueueInTransaction",
        "QueueWithOptions",
        "SignalWait",
        "Rate",
        "SyncContextJob",
        "SyncJob",
        "Transaction",
        "TenantCounts",
        "WorkerInfo",
    ),
}
_ROOM_OF = {name: room for room, names in _HOMES.items() for name in names}
# Rooms that may be reached by a dot without an import of their own.
_ROOMS = (
    "api",
    "arrow",
    "buckets",
    "connect",
    "consumers",
    "dashboard",
    "engine",
    "jet",
    "locks",
    "metrics",
    "observe",
    "otel",
    "queue",
    "runtime",
    "sourcing",
    "storage",
    "streams",
    "subjects",
    "sync",
)


def __getattr__(name: str) -> object:
    if name == "__all__":
        found: object = [*import_module("pelton.api").__all__, *_ROOM_OF, "sync"]
    elif name in _ROOMS:
        return import_module(f"pelton.{name}")
    elif name in _ROOM_OF:
        found = getattr(import_module(_ROOM_OF[name]), name)
    elif name.startswith("_") or name not in import_module("pelton.api").__all__:
        raise AttributeError(f"module 'pelton' has no attribute {name!r}")
    else:
        found = getattr(import_module("pelton.api"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *__getattr__("__all__")})
