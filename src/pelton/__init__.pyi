"""The public names. Written by ``python -m tools.names_stub``: do not edit."""

# ruff: noqa: F403, F405
from pelton import api as api
from pelton import buckets as buckets
from pelton import connect as connect
from pelton import consumers as consumers
from pelton import engine as engine
from pelton import jet as jet
from pelton import locks as locks
from pelton import queue as queue
from pelton import runtime as runtime
from pelton import sourcing as sourcing
from pelton import storage as storage
from pelton import streams as streams
from pelton import subjects as subjects
from pelton import sync as sync
from pelton.api import *
from pelton.buckets import Base64Codec as Base64Codec
from pelton.buckets import Bucket as Bucket
from pelton.buckets import BucketSettings as BucketSettings
from pelton.buckets import BucketStatus as BucketStatus
from pelton.buckets import ChainCodec as ChainCodec
from pelton.buckets import Codec as Codec
from pelton.buckets import Entry as Entry
from pelton.buckets import ObjectInfo as ObjectInfo
from pelton.buckets import ObjectLink as ObjectLink
from pelton.buckets import ObjectSettings as ObjectSettings
from pelton.buckets import ObjectStatus as ObjectStatus
from pelton.buckets import ObjectStore as ObjectStore
from pelton.buckets import PathCodec as PathCodec
from pelton.buckets import SplitCodec as SplitCodec
from pelton.connect import ClusterOptions as ClusterOptions
from pelton.connect import Jet as Jet
from pelton.connect import open as open
from pelton.engine import KeyFile as KeyFile
from pelton.engine import backup as backup
from pelton.engine import compact as compact
from pelton.engine import rekey as rekey
from pelton.engine import restore as restore
from pelton.engine import salvage as salvage
from pelton.engine import verify as verify
from pelton.jet import Consumer as Consumer
from pelton.jet import Heard as Heard
from pelton.jet import Listening as Listening
from pelton.jet import Message as Message
from pelton.jet import Metadata as Metadata
from pelton.jet import Savepoint as Savepoint
from pelton.jet import Stream as Stream
from pelton.locks import Election as Election
from pelton.locks import ElectionOptions as ElectionOptions
from pelton.locks import Held as Held
from pelton.locks import Leader as Leader
from pelton.locks import Lock as Lock
from pelton.locks import Semaphore as Semaphore
from pelton.locks import Term as Term
from pelton.queue import Call as Call
from pelton.queue import ClaimedJob as ClaimedJob
from pelton.queue import Claims as Claims
from pelton.queue import DeadLetter as DeadLetter
from pelton.queue import Job as Job
from pelton.queue import JobContext as JobContext
from pelton.queue import JobCounts as JobCounts
from pelton.queue import JobHandle as JobHandle
from pelton.queue import JobInfo as JobInfo
from pelton.queue import JobRules as JobRules
from pelton.queue import JobTransaction as JobTransaction
from pelton.queue import Outcome as Outcome
from pelton.queue import Queue as Queue
from pelton.queue import Transaction as Transaction

__version__: str
__all__ = [
    "EVENTS",
    "VERBS",
    "AccountInfo",
    "AccountInfoRequest",
    "AccountLimits",
    "AckError",
    "AckKind",
    "AckOp",
    "AckRejectedError",
    "AckSample",
    "ApiAudit",
    "ApiError",
    "ApiStats",
    "Backend",
    "Backoff",
    "BadRequestError",
    "Base64Codec",
    "Bucket",
    "BucketDecodeError",
    "BucketError",
    "BucketKeyExistsError",
    "BucketKeyNotFoundError",
    "BucketNotFoundError",
    "BucketSettings",
    "BucketStatus",
    "Call",
    "ChainCodec",
    "ClaimedJob",
    "Claims",
    "ClientInfo",
    "ClusterInfo",
    "ClusterOptions",
    "Codec",
    "ConfigError",
    "Consumer",
    "ConsumerAction",
    "ConsumerConfig",
    "ConsumerCreate",
    "ConsumerDelete",
    "ConsumerInfo",
    "ConsumerInfoRequest",
    "ConsumerLimits",
    "ConsumerList",
    "ConsumerListReply",
    "ConsumerNames",
    "ConsumerNamesReply",
    "ConsumerNotFoundError",
    "ConsumerPause",
    "ConsumerPaused",
    "ConsumerReset",
    "ConsumerResetReply",
    "ConsumerUnpin",
    "ConsumerUnsettled",
    "ConsumerUnsettledReply",
    "CorruptMessageError",
    "DeadLetter",
    "Delivered",
    "DirectGet",
    "DirectGetDisabledError",
    "DirectReply",
    "Election",
    "ElectionError",
    "ElectionOptions",
    "Entry",
    "Event",
    "ExpectationError",
    "External",
    "GroupPinned",
    "GroupUnpinned",
    "Head",
    "Headers",
    "Heard",
    "HeartbeatMissedError",
    "Held",
    "Incoming",
    "Jet",
    "JetStreamMissingError",
    "Job",
    "JobArgumentsError",
    "JobCancelledError",
    "JobContext",
    "JobCounts",
    "JobError",
    "JobFailedError",
    "JobHandle",
    "JobInfo",
    "JobNotFoundError",
    "JobResultError",
    "JobRules",
    "JobTimeoutError",
    "JobTransaction",
    "KeyFile",
    "Leader",
    "LeaseLostError",
    "LimitError",
    "Listening",
    "Lock",
    "LockError",
    "LockLostError",
    "LockNotHeldError",
    "LockReentryError",
    "LockTimeoutError",
    "MaxBytesError",
    "MaxDeliveries",
    "MaxMessagesError",
    "MaxMessagesPerSubjectError",
    "Message",
    "MessageNaked",
    "MessageNotFoundError",
    "MessageTerminated",
    "MessageTooLargeError",
    "Metadata",
    "MsgDelete",
    "MsgGet",
    "MsgGetReply",
    "NoStreamForSubjectError",
    "NotAStoreError",
    "NotFoundError",
    "ObjectChangedError",
    "ObjectDamagedError",
    "ObjectError",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectLink",
    "ObjectLinkError",
    "ObjectNotFoundError",
    "ObjectSettings",
    "ObjectStatus",
    "ObjectStore",
    "Outcome",
    "Outgoing",
    "PathCodec",
    "PauseReply",
    "PeerInfo",
    "PeltonError",
    "PermanentJobError",
    "PinLostError",
    "Placement",
    "PriorityGroupState",
    "PubAck",
    "PullRefusedError",
    "PullRequest",
    "PurgeReply",
    "Queue",
    "Republish",
    "Request",
    "RetryJob",
    "Savepoint",
    "Semaphore",
    "SequenceInfo",
    "ServerPermissionError",
    "ServerRefusedError",
    "ServerTimeoutError",
    "ServerUnreachableError",
    "Settled",
    "SourceConsumer",
    "SplitCodec",
    "SqlConstraintError",
    "SqlError",
    "SqlForbiddenError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreForkedError",
    "StoreFullError",
    "StoreGoneError",
    "StoreKeyError",
    "StoreReadOnlyError",
    "StoreSettingsError",
    "StoreVersionError",
    "StoredMessage",
    "Stream",
    "StreamAction",
    "StreamConfig",
    "StreamCreate",
    "StreamDelete",
    "StreamHeads",
    "StreamHeadsReply",
    "StreamInfo",
    "StreamInfoRequest",
    "StreamList",
    "StreamListReply",
    "StreamNames",
    "StreamNamesReply",
    "StreamNotFoundError",
    "StreamPurge",
    "StreamSource",
    "StreamState",
    "StreamUpdate",
    "SubjectTransform",
    "Subscription",
    "Success",
    "Term",
    "TermLostError",
    "TooManyResultsError",
    "Transacting",
    "Transaction",
    "TransactionError",
    "TransactionTimeoutError",
    "UnknownJobError",
    "UnpinReply",
    "Unsettled",
    "Verb",
    "WireMessage",
    "WrongLastSequenceError",
    "api_error",
    "api_subject",
    "backup",
    "compact",
    "consumer_config",
    "decode_event",
    "decode_reply",
    "decode_request",
    "delivery_of",
    "encode_body",
    "encode_error",
    "encode_event",
    "encode_reply",
    "from_reply",
    "open",
    "parse_rfc3339",
    "rekey",
    "resolved_consumer",
    "resolved_stream",
    "restore",
    "rfc3339",
    "salvage",
    "stream_config",
    "sync",
    "verify",
]
