"""Pelton without ``await``: the same names, and calls that block until they are done.

with pelton.sync.open("garage.pelton") as jet:
    jet.create_stream("orders", subjects=["orders.>"])
    jet.publish("orders.eu.1", b"...")

Each open store has an event loop on its own thread (``portal.py``); the classes here are derived from the
async ones (``derive.py``), and any number of threads may share a handle. Ctrl-C during a call cancels the operation.
Their signatures for type checkers are in ``__init__.pyi``, written by ``tools/sync_stub.py``.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

from pelton import buckets, connect, jet, locks, queue
from pelton.api import *  # noqa: F403  # the same vocabulary as in pelton itself
from pelton.api import __all__ as _vocabulary
from pelton.buckets import (
    Base64Codec,
    BucketSettings,
    BucketStatus,
    ChainCodec,
    Codec,
    Entry,
    ObjectInfo,
    ObjectLink,
    ObjectSettings,
    ObjectStatus,
    PathCodec,
    SplitCodec,
)
from pelton.connect import ClusterOptions
from pelton.engine import backup, compact, rekey, restore, salvage, verify
from pelton.jet import CoreMessage, Metadata
from pelton.locks import ElectionOptions, Leader
from pelton.queue import (
    AttemptError,
    BatchDecorator,
    ClaimedJob,
    DeadLetter,
    FlowExtension,
    FlowInfo,
    FlowNode,
    FlowNodeInfo,
    JobCall,
    JobCodec,
    JobContext,
    JobCounts,
    JobDecorator,
    JobDefinition,
    JobInfo,
    JobLimit,
    JobOptions,
    JobProgress,
    JobRules,
    Jobs,
    JobSchedule,
    Outcome,
    QueueEvent,
    Rate,
    TenantCounts,
    WorkerInfo,
)
from pelton.sync.derive import derive, wrap
from pelton.sync.portal import Portal

__all__ = [
    *_vocabulary,
    "AttemptError",
    "Base64Codec",
    "Bucket",
    "BucketSettings",
    "BucketStatus",
    "JobCall",
    "JobCodec",
    "ClaimedJob",
    "Claims",
    "ChainCodec",
    "Codec",
    "ClusterOptions",
    "Consumer",
    "CoreMessage",
    "LockLease",
    "DeadLetter",
    "Election",
    "ElectionOptions",
    "Entry",
    "Jet",
    "AsyncContextJob",
    "AsyncJob",
    "BatchDecorator",
    "BatchJob",
    "Job",
    "JobDecorator",
    "JobDefinition",
    "QueueEvent",
    "QueueEvents",
    "JobOptions",
    "JobLimit",
    "JobProgress",
    "JobWithOptions",
    "Jobs",
    "JobRules",
    "JobSchedule",
    "JobContext",
    "JobCounts",
    "Flow",
    "FlowExtension",
    "FlowHandle",
    "FlowInfo",
    "FlowNode",
    "FlowNodeInfo",
    "FlowWithOptions",
    "JobHandle",
    "JobInfo",
    "TenantCounts",
    "WorkerInfo",
    "JobTransaction",
    "Leader",
    "Subscription",
    "Lock",
    "Message",
    "Metadata",
    "ObjectInfo",
    "ObjectLink",
    "ObjectSettings",
    "ObjectStatus",
    "ObjectStore",
    "Outcome",
    "PathCodec",
    "Queue",
    "QueueInTransaction",
    "QueueWithOptions",
    "Rate",
    "Savepoint",
    "SplitCodec",
    "SqlReads",
    "Semaphore",
    "Stream",
    "backup",
    "compact",
    "SyncContextJob",
    "SyncJob",
    "Term",
    "Transaction",
    "open",
    "rekey",
    "restore",
    "salvage",
    "verify",
]  # names

Jet = derive(connect.Jet, ends_portal="close", opens=("clone",))
Bucket = derive(buckets.Bucket)
ObjectStore = derive(buckets.ObjectStore, as_given=("put", "get_file"))
Stream = derive(jet.Stream)
Consumer = derive(jet.Consumer)
Subscription = derive(jet.Subscription)
Message = derive(jet.Message)
Queue = derive(queue.Queue, stops={"work": "stop"})
Job = derive(queue.Job)
AsyncJob = derive(queue.AsyncJob)
BatchJob = derive(queue.BatchJob)
SyncJob = derive(queue.SyncJob)
AsyncContextJob = derive(queue.AsyncContextJob)
SyncContextJob = derive(queue.SyncContextJob)
JobWithOptions = derive(queue.JobWithOptions)
QueueWithOptions = derive(queue.QueueWithOptions)
QueueInTransaction = derive(queue.QueueInTransaction)
Claims = derive(queue.Claims)
JobHandle = derive(queue.JobHandle)
QueueEvents = derive(queue.QueueEvents)
Flow = derive(queue.Flow)
FlowWithOptions = derive(queue.FlowWithOptions)
FlowHandle = derive(queue.FlowHandle)
Transaction = derive(queue.Transaction)
JobTransaction = derive(queue.JobTransaction)
Savepoint = derive(jet.Savepoint)
SqlReads = derive(jet.SqlReads)
Election = derive(locks.Election)
Term = derive(locks.Term)
Lock = derive(locks.Lock)
Semaphore = derive(locks.Semaphore)
LockLease = derive(locks.LockLease)


@functools.wraps(connect.open)
def open(address: str | os.PathLike[str], **options: Any) -> Any:
    """Open a store, as :func:`pelton.open` does, and return it; close it, or use it in a ``with``."""
    opening = connect.open(address, **options)
    portal = Portal(os.fspath(address))
    try:
        return wrap(portal.run(lambda: opening), portal)
    except BaseException:
        portal.stop()
        raise


def on_loop(jet: connect.Jet, loop: asyncio.AbstractEventLoop) -> Any:
    """Return the blocking face of an open store, for threads other than the thread of its running ``loop``."""
    return wrap(jet, Portal("the worker's store", loop))
