"""Durable streams and exclusive work, embedded in a Python program.

async with pelton.open("garage.pelton") as jet:
    await jet.create_stream("orders", subjects=["orders.>"])
    await jet.publish("orders.eu.1", b"...")
"""

from pelton import sync
from pelton.api import *  # noqa: F403  # the vocabulary is public as a whole; api.__all__ says what it is
from pelton.api import __all__ as _vocabulary
from pelton.buckets import (
    Base64Codec,
    Bucket,
    BucketSettings,
    BucketStatus,
    ChainCodec,
    Codec,
    Entry,
    ObjectInfo,
    ObjectLink,
    ObjectSettings,
    ObjectStatus,
    ObjectStore,
    PathCodec,
    SplitCodec,
)
from pelton.connect import ClusterOptions, Jet, open
from pelton.engine import KeyFile, backup, compact, rekey, restore, salvage, verify
from pelton.jet import Consumer, Heard, Listening, Message, Metadata, Savepoint, Stream
from pelton.locks import Election, ElectionOptions, Held, Leader, Lock, Semaphore, Term
from pelton.queue import (
    Call,
    ClaimedJob,
    Claims,
    DeadLetter,
    Job,
    JobContext,
    JobCounts,
    JobHandle,
    JobInfo,
    JobRules,
    JobTransaction,
    Outcome,
    Queue,
    Transaction,
)
from pelton.runtime import Backoff
from pelton.runtime.version import VERSION

__version__ = VERSION

__all__ = [
    *_vocabulary,
    "Backoff",
    "Base64Codec",
    "Bucket",
    "BucketSettings",
    "BucketStatus",
    "Call",
    "ClaimedJob",
    "Claims",
    "ChainCodec",
    "Codec",
    "ClusterOptions",
    "Consumer",
    "Heard",
    "Held",
    "DeadLetter",
    "Election",
    "ElectionOptions",
    "Entry",
    "Jet",
    "Job",
    "JobRules",
    "JobContext",
    "JobCounts",
    "JobHandle",
    "JobInfo",
    "KeyFile",
    "JobTransaction",
    "Leader",
    "Listening",
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
    "Savepoint",
    "SplitCodec",
    "Semaphore",
    "Stream",
    "backup",
    "compact",
    "Term",
    "Transaction",
    "open",
    "rekey",
    "restore",
    "salvage",
    "verify",
    "sync",
]  # names
