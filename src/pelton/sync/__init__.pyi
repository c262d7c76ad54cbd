"""Blocking twins of the async classes. Written by ``python -m tools.sync_stub``: do not edit."""

# ruff: noqa: F403, F405
# mypy: disable-error-code="overload-overlap"
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, Self, Unpack, overload
from uuid import UUID

import pyarrow

from pelton.api import *
from pelton.api.keys import Key
from pelton.api.times import Seconds
from pelton.api.tracing import Tracing
from pelton.buckets.bucket import T
from pelton.buckets.bucket_settings import BucketSettings as BucketSettings
from pelton.buckets.coding import Base64Codec as Base64Codec
from pelton.buckets.coding import BucketStatus as BucketStatus
from pelton.buckets.coding import ChainCodec as ChainCodec
from pelton.buckets.coding import Codec as Codec
from pelton.buckets.coding import Entry as Entry
from pelton.buckets.coding import PathCodec as PathCodec
from pelton.buckets.coding import SplitCodec as SplitCodec
from pelton.buckets.object_info import ObjectInfo as ObjectInfo
from pelton.buckets.object_info import ObjectLink as ObjectLink
from pelton.buckets.object_info import ObjectStatus as ObjectStatus
from pelton.buckets.object_store import ObjectSettings as ObjectSettings
from pelton.buckets.object_store import Target
from pelton.buckets.upload import Content, Progress
from pelton.columns.arrow_batches import Decode
from pelton.connect.opening import ClusterOptions as ClusterOptions
from pelton.connect.opening import Leaf as Leaf
from pelton.engine.upkeep import backup as backup
from pelton.engine.upkeep import compact as compact
from pelton.engine.upkeep import migrate as migrate
from pelton.engine.upkeep import rekey as rekey
from pelton.engine.upkeep import restore as restore
from pelton.engine.upkeep import salvage as salvage
from pelton.engine.upkeep import verify as verify
from pelton.jet import HeaderValues
from pelton.jet.message import AnyMessage, PublishOptions
from pelton.jet.message import Metadata as Metadata
from pelton.jet.streams import CoreMessage as CoreMessage
from pelton.locks.campaign import State
from pelton.locks.candidate_runner import Leader as Leader
from pelton.locks.election import ElectionOptions as ElectionOptions
from pelton.locks.lock import Guard
from pelton.queue.builder import FlowExtension as FlowExtension
from pelton.queue.builder import FlowNode as FlowNode
from pelton.queue.builder import FlowState, NodeOptionFields, OnFailure
from pelton.queue.enqueuer import QueueEvent as QueueEvent
from pelton.queue.enqueuer import QueueEventKind
from pelton.queue.flows import FlowInfo as FlowInfo
from pelton.queue.flows import FlowNodeInfo as FlowNodeInfo
from pelton.queue.flows import V_co
from pelton.queue.job import JobCall as JobCall
from pelton.queue.job import JobDecorator as JobDecorator
from pelton.queue.job import JobDefinition as JobDefinition
from pelton.queue.job import JobHooks, JobQueue, P, R, R_co
from pelton.queue.job_message import JobArguments, ResultCodec, RunContext
from pelton.queue.job_message import JobCodec as JobCodec
from pelton.queue.model.limits import JobLimit as JobLimit
from pelton.queue.model.limits import Rate as Rate
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import BackoffRule, OptionFields
from pelton.queue.model.options import JobOptions as JobOptions
from pelton.queue.model.options import JobRules as JobRules
from pelton.queue.model.states import AttemptError as AttemptError
from pelton.queue.model.states import DeadLetter as DeadLetter
from pelton.queue.model.states import Ending, FlowPlace, JobState
from pelton.queue.model.states import JobCounts as JobCounts
from pelton.queue.model.states import JobInfo as JobInfo
from pelton.queue.model.states import JobProgress as JobProgress
from pelton.queue.model.states import JobSchedule as JobSchedule
from pelton.queue.model.states import JobStep as JobStep
from pelton.queue.model.states import Outcome as Outcome
from pelton.queue.model.states import SignalWait as SignalWait
from pelton.queue.model.states import TenantCounts as TenantCounts
from pelton.queue.model.states import WorkerInfo as WorkerInfo
from pelton.queue.registry import BatchDecorator as BatchDecorator
from pelton.queue.registry import C, E, F
from pelton.queue.registry import Jobs as Jobs
from pelton.queue.run.calls import CalledJob as CalledJob
from pelton.queue.run.claims import ClaimedJob as ClaimedJob
from pelton.queue.run.context import D
from pelton.queue.run.steps import JobSteps
from pelton.queue.transaction import EnqueuedFlow, H, PublishFlow
from pelton.runtime import Runtime
from pelton.storage import SyncMode

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
    "AsyncContextJob",
    "AsyncJob",
    "AttemptError",
    "Backend",
    "BackendSubscription",
    "Backoff",
    "BadRequestError",
    "Base64Codec",
    "BatchDecorator",
    "BatchJob",
    "Bucket",
    "BucketDecodeError",
    "BucketError",
    "BucketKeyExistsError",
    "BucketKeyNotFoundError",
    "BucketNotFoundError",
    "BucketSettings",
    "BucketStatus",
    "CalledJob",
    "Cancel",
    "ChainCodec",
    "CheckpointBlocked",
    "ClaimedJob",
    "Claims",
    "ClientInfo",
    "ClusterInfo",
    "ClusterOptions",
    "Codec",
    "ConfigError",
    "Consumer",
    "ConsumerAction",
    "ConsumerBacklog",
    "ConsumerBacklogs",
    "ConsumerBacklogsReply",
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
    "Continue",
    "CoreMessage",
    "CorruptConfigError",
    "CorruptMessageError",
    "DeadLetter",
    "Delivered",
    "DirectGet",
    "DirectGetDisabledError",
    "DirectReply",
    "Discard",
    "DuplicateJobError",
    "Duration",
    "Election",
    "ElectionError",
    "ElectionOptions",
    "Entry",
    "Event",
    "ExpectationError",
    "External",
    "Flow",
    "FlowExtension",
    "FlowHandle",
    "FlowInfo",
    "FlowNode",
    "FlowNodeInfo",
    "FlowNotFoundError",
    "FlowWithOptions",
    "GroupPinned",
    "GroupUnpinned",
    "Headers",
    "HeartbeatMissedError",
    "Incoming",
    "Jet",
    "JetStreamMissingError",
    "Job",
    "JobArgumentsError",
    "JobCall",
    "JobCancelledError",
    "JobCodec",
    "JobContext",
    "JobCounts",
    "JobCrashedError",
    "JobDecorator",
    "JobDefinition",
    "JobEndedError",
    "JobError",
    "JobFailedError",
    "JobHandle",
    "JobInfo",
    "JobLimit",
    "JobNotFoundError",
    "JobNotMovedError",
    "JobOptions",
    "JobProgress",
    "JobResultError",
    "JobRules",
    "JobSchedule",
    "JobStep",
    "JobTimeoutError",
    "JobTransaction",
    "JobWithOptions",
    "Jobs",
    "KeyFile",
    "LastHeaders",
    "Leader",
    "Leaf",
    "LeaseLostError",
    "LimitError",
    "Lock",
    "LockError",
    "LockLease",
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
    "MessageQuarantined",
    "MessageTerminated",
    "MessageTooLargeError",
    "Metadata",
    "MinuteNote",
    "MinuteNotes",
    "MinuteNotesReply",
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
    "QueueEvent",
    "QueueEvents",
    "QueueInTransaction",
    "QueueInUseError",
    "QueueNotFoundError",
    "QueueWithOptions",
    "Rate",
    "Reading",
    "Republish",
    "Request",
    "RestoreEnded",
    "RestoreStarted",
    "RetryJob",
    "Savepoint",
    "Semaphore",
    "SequenceInfo",
    "ServerPermissionError",
    "ServerRefusedError",
    "ServerTimeoutError",
    "ServerUnreachableError",
    "Settled",
    "SignalTimeoutError",
    "SignalWait",
    "SlowSync",
    "SnapshotEnded",
    "SnapshotStarted",
    "SnapshotTimeoutError",
    "Snooze",
    "SourceConsumer",
    "SplitCodec",
    "SqlConstraintError",
    "SqlError",
    "SqlForbiddenError",
    "SqlReads",
    "StepTimeoutError",
    "StepsWithOptions",
    "StoreBusyError",
    "StoreClosedError",
    "StoreDescriptorsError",
    "StoreError",
    "StoreFailedError",
    "StoreForkedError",
    "StoreFullError",
    "StoreGoneError",
    "StoreKeyError",
    "StoreReadOnlyError",
    "StoreSettingsError",
    "StoreStandbyError",
    "StoreVersionError",
    "StoredMessage",
    "Stream",
    "StreamAction",
    "StreamConfig",
    "StreamCreate",
    "StreamDelete",
    "StreamFill",
    "StreamFillReply",
    "StreamInfo",
    "StreamInfoRequest",
    "StreamLastHeaders",
    "StreamLastHeadersReply",
    "StreamLastMessages",
    "StreamLastMessagesReply",
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
    "SyncContextJob",
    "SyncJob",
    "TenantCounts",
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
    "UnsettledGroup",
    "UnsettledGroups",
    "UnsettledGroupsReply",
    "Verb",
    "WireMessage",
    "WorkerInfo",
    "WriterBusy",
    "WrongLastSequenceError",
    "WrongLoopError",
    "api_error",
    "api_subject",
    "backup",
    "compact",
    "consumer_config",
    "dec_hook",
    "decode_event",
    "decode_reply",
    "decode_request",
    "delivery_of",
    "enc_hook",
    "encode_body",
    "encode_error",
    "encode_event",
    "encode_reply",
    "from_reply",
    "migrate",
    "open",
    "parse_rfc3339",
    "rekey",
    "resolved_consumer",
    "resolved_stream",
    "restore",
    "rfc3339",
    "salvage",
    "stream_config",
    "verify",
]

class Bucket(Generic[T]):
    name: str
    def create(self, key: str, value: T, *, ttl: Seconds | None = None) -> int: ...
    def delete(self, key: str, *, revision: int | None = None) -> None: ...
    def get(self, key: str, *, revision: int = 0) -> Entry[T]: ...
    def history(self, key: str) -> list[Entry[T]]: ...
    def keys(self, *filters: str) -> Iterator[str]: ...
    def purge(self, key: str, *, revision: int | None = None, ttl: Seconds | None = None) -> None: ...
    def purge_deletes(self, *, older_than: Seconds = 1800.0) -> None: ...
    def put(self, key: str, value: T, *, ttl: Seconds | None = None) -> int: ...
    def status(self) -> BucketStatus: ...
    def update(self, key: str, value: T, revision: int, *, ttl: Seconds | None = None) -> int: ...
    def watch(
        self,
        *keys: str,
        include_history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        resume_from_revision: int = 0,
    ) -> Iterator[Entry[T] | None]: ...

class ObjectStore:
    name: str
    def add_bucket_link(self, name: str, target: ObjectStore | str) -> ObjectInfo: ...
    def add_link(self, name: str, target: ObjectInfo) -> ObjectInfo: ...
    def cleanup(self, *, older_than: Seconds = 3600.0) -> int: ...
    def delete(self, name: str) -> None: ...
    def get(self, name: str, *, progress: Progress | None = None) -> bytes: ...
    def get_chunks(self, name: str) -> Iterator[bytes]: ...
    def get_file(self, name: str, target: Target, *, progress: Progress | None = None) -> ObjectInfo: ...
    def get_range(self, name: str | ObjectInfo, start: int = 0, end: int | None = None) -> bytes: ...
    def info(self, name: str, *, show_deleted: bool = False) -> ObjectInfo: ...
    def list(self, *, show_deleted: bool = False) -> Iterator[ObjectInfo]: ...
    def put(
        self,
        name: str,
        content: Content,
        *,
        description: str = "",
        headers: HeaderValues | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int = 131072,
        progress: Progress | None = None,
    ) -> ObjectInfo: ...
    def seal(self) -> None: ...
    def status(self) -> ObjectStatus: ...
    def update(
        self,
        name: str,
        *,
        new_name: str | None = None,
        description: str | None = None,
        headers: HeaderValues | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo: ...
    def watch(self, *, ignore_deletes: bool = False, updates_only: bool = False) -> Iterator[ObjectInfo | None]: ...

class Jet:
    backend: Backend
    runtime: Runtime
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def account_info(self) -> AccountInfo: ...
    def add(self, subject: str, delta: int = 1, *, msg_id: str | None = None) -> int: ...
    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        streams: Sequence[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None: ...
    @overload
    def bucket(self, name: str, *, codec: Codec | None = None) -> Bucket[bytes]: ...
    @overload
    def bucket(self, name: str, *, type: type[T], codec: Codec | None = None) -> Bucket[T]: ...
    def bucket_names(self) -> list[str]: ...
    def clone(self) -> Jet: ...
    def close(self) -> None: ...
    @overload
    def create_bucket(
        self, name: str, *, codec: Codec | None = None, **settings: Unpack[BucketSettings]
    ) -> Bucket[bytes]: ...
    @overload
    def create_bucket(
        self, name: str, *, type: type[T], codec: Codec | None = None, **settings: Unpack[BucketSettings]
    ) -> Bucket[T]: ...
    def create_objects(self, name: str, **settings: Unpack[ObjectSettings]) -> ObjectStore: ...
    def create_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream: ...
    def delete_bucket(self, name: str) -> None: ...
    def delete_objects(self, name: str) -> None: ...
    def delete_stream(self, name: str) -> None: ...
    def domain(self, name: str, *, patience: Seconds = 30) -> Jet: ...
    def elect(self, election: str, **options: Unpack[ElectionOptions]) -> Election: ...
    def feed(
        self, stream: str, to: Jet, *, name: str = "", filters: Sequence[str] = ..., until_empty: bool = False
    ) -> int: ...
    def lock(self, name: str, *, ttl: Seconds = 30) -> Lock: ...
    def objects(self, name: str) -> ObjectStore: ...
    def objects_names(self) -> list[str]: ...
    def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        msg_id: str | None = None,
        headers: HeaderValues | None = None,
        expected_stream: str | None = None,
        expected_last_msg_id: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
    ) -> PubAck: ...
    def publish_atomic(self, messages: Iterable[AnyMessage]) -> PubAck: ...
    def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]: ...
    def queue(
        self,
        name: str,
        *,
        exclusive: bool | None = None,
        lease: float | timedelta | None = None,
        history_max_age: float | timedelta | None = None,
        num_replicas: int | None = None,
        jobs: Jobs | Sequence[Jobs] | None = None,
        create: bool = True,
    ) -> Queue: ...
    def queue_names(self) -> list[str]: ...
    def read(self, *, timeout: float | timedelta = 60.0) -> SqlReads: ...
    def rekey(self, key: Key) -> None: ...
    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        streams: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        key: Key | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[str]: ...
    def schedule(
        self,
        subject: str,
        data: bytes = b"",
        *,
        target: str,
        at: datetime | None = None,
        delay: Seconds | None = None,
        every: Seconds | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        source: str | None = None,
        replace: bool = False,
        headers: HeaderValues | None = None,
    ) -> PubAck: ...
    def semaphore(self, name: str, *, slots: int, ttl: Seconds = 30) -> Semaphore: ...
    def stream(self, name: str) -> Stream: ...
    def stream_names(self, subject: str = "") -> list[str]: ...
    def subscribe(self, subject: str, *, queue: str = "") -> Subscription: ...
    def transaction(self, *, timeout: float | timedelta = 1.0) -> Transaction: ...
    def update_bucket(self, name: str, **settings: Unpack[BucketSettings]) -> Bucket[bytes]: ...
    def update_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream: ...

def open(
    address: str | os.PathLike[str],
    *,
    sync: SyncMode | None = None,
    sync_interval: float | timedelta | None = None,
    busy_timeout: float | timedelta | None = None,
    limits: AccountLimits | None = None,
    key: Key | None = None,
    mode: int | None = None,
    read_only: bool = False,
    leaf: Leaf | None = None,
    runtime: Runtime | None = None,
    **cluster: Unpack[ClusterOptions],
) -> Jet: ...

class Consumer:
    stream_name: str
    name: str
    config: ConsumerConfig
    def __iter__(self) -> Iterator[Message]: ...
    def ack(self, messages: Iterable[Message]) -> None: ...
    def consume(self, callback: Callable[[Message], object], *, prefetch: int = 512, **pull: Any) -> None: ...
    def delete(self) -> None: ...
    def fetch(
        self,
        batch: int = 1,
        *,
        timeout: Seconds | None = 5.0,
        max_bytes: int = 0,
        no_wait: bool = False,
        group: str = "",
        priority: int = 0,
        min_pending: int = 0,
        min_ack_pending: int = 0,
        failover: Seconds = 0,
        on_pinned: Callable[[str], object] | None = None,
        on_unpinned: Callable[[str], object] | None = None,
    ) -> list[Message]: ...
    def info(self) -> ConsumerInfo: ...
    def messages(self, *, prefetch: int = 64, max_bytes: int = 0, **pull: Any) -> Iterator[Message]: ...
    def next(self, *, timeout: Seconds | None = 5.0, **pull: Any) -> Message | None: ...
    def pause(self, until: datetime | str) -> PauseReply: ...
    def pin(self, group: str) -> str: ...
    def reset(self, seq: int = 0) -> ConsumerInfo: ...
    def resume(self) -> None: ...
    def unpin(self, group: str) -> None: ...

class Subscription:
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def __iter__(self) -> Iterator[CoreMessage]: ...
    def close(self) -> None: ...
    def next(self, *, timeout: Seconds | None = None) -> CoreMessage | None: ...

class Message:
    delivered: Delivered
    is_settled: bool
    def ack(self) -> None: ...
    def ack_sync(self) -> None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Headers: ...
    def in_progress(self) -> None: ...
    @property
    def metadata(self) -> Metadata: ...
    def nak(self, *, delay: Seconds = 0) -> None: ...
    @property
    def subject(self) -> str: ...
    def term(self, *, reason: str = "") -> None: ...

class Savepoint:
    def __enter__(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

class SqlReads:
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any] = ...) -> list[tuple[Any, ...]]: ...

class Stream:
    config: StreamConfig
    def consumer(self, name: str) -> Consumer: ...
    def consumer_names(self) -> list[str]: ...
    def counter(self, subject: str) -> int: ...
    def create_consumer(self, config: ConsumerConfig | None = None, /, **fields: Any) -> Consumer: ...
    def delete(self) -> None: ...
    def delete_consumer(self, name: str) -> None: ...
    def delete_message(self, seq: int) -> None: ...
    def get_last_message(self, subject: str) -> StoredMessage: ...
    def get_last_messages(
        self, subjects: str | Iterable[str], *, up_to_seq: int = 0, up_to_time: datetime | str | None = None
    ) -> list[StoredMessage]: ...
    def get_message(self, seq: int) -> StoredMessage: ...
    def get_messages(
        self,
        batch: int = 256,
        *,
        seq: int = 1,
        subject: str = ">",
        start_time: datetime | str | None = None,
        max_bytes: int = 0,
    ) -> list[StoredMessage]: ...
    def get_next_message(self, subject: str, seq: int = 1) -> StoredMessage: ...
    def info(self, *, subjects_filter: str = "", offset: int = 0, deleted_details: bool = False) -> StreamInfo: ...
    @property
    def name(self) -> str: ...
    def ordered(self, *, heartbeat: Seconds = 5.0, **fields: Any) -> Iterator[Message]: ...
    def purge(self, *, filter: str = "", seq: int = 0, keep: int = 0) -> int: ...
    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        subjects: str | Iterable[str] = ">",
        start_seq: int = 1,
        end_seq: int = 0,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
        decode: Decode | None = None,
        schema: pyarrow.Schema | pyarrow.DataType | None = None,
    ) -> pyarrow.RecordBatchReader: ...

class Election:
    election: str
    name: str
    bucket: str
    def __enter__(self) -> Term: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...
    def leader(self) -> Leader | None: ...
    def run(self) -> None: ...
    @property
    def state(self) -> State: ...
    def step_down(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def term(self) -> Term | None: ...

class LockLease:
    name: str
    token: int
    ttl: int
    caller: object
    is_given_back: bool
    def check(self) -> None: ...
    def guard(self) -> Guard: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    def release(self) -> None: ...
    @property
    def spec(self) -> str: ...
    def until_lost(self) -> bool: ...

class Lock:
    name: str
    ttl: int
    def __enter__(self) -> LockLease: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...
    def acquire(self, *, timeout: Seconds | None = None) -> LockLease: ...
    def holders(self) -> list[str]: ...
    def release(self) -> None: ...
    def try_acquire(self) -> LockLease | None: ...

class Semaphore:
    name: str
    ttl: int
    slots: int
    def __enter__(self) -> LockLease: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...
    def acquire(self, *, timeout: Seconds | None = None) -> LockLease: ...
    def holders(self) -> list[str]: ...
    def release(self) -> None: ...
    def try_acquire(self) -> LockLease | None: ...

class Term:
    election: str
    name: str
    token: int
    def check(self) -> None: ...
    def end(self, reason: str) -> None: ...
    @property
    def is_held(self) -> bool: ...
    def lost(self) -> str: ...
    @property
    def reason(self) -> str: ...

class Claims:
    worker: str
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def ahead(self) -> int: ...
    def give_back_ahead(self) -> None: ...
    def is_empty(self) -> bool: ...
    def settle(self, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]: ...
    def take(self, limit: int = 200, *, timeout: float | timedelta = 0.0, ahead: int = 0) -> list[ClaimedJob]: ...

class AsyncContextJob(Job[P, R], Generic[P, R]):
    queue: JobQueue | None
    in_process: bool
    hooks: JobHooks
    function: Callable[..., Any]
    name: str
    rules: JobRules
    is_async: bool
    arguments: JobArguments
    context_parameter: str
    results: ResultCodec
    def __call__(self, context: RunContext, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall: ...
    def call_of(self, args: bytes, options: JobOptions) -> JobCall: ...
    def call_with(self, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions) -> JobCall: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, key: str, idempotency_key: str = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, idempotency_key: str, **kwargs: Any) -> JobHandle[R]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle[R]]: ...
    def options(self, **options: Unpack[OptionFields]) -> JobWithOptions[P, R]: ...
    @property
    def own_queue(self) -> JobQueue: ...

class AsyncJob(Job[P, R], Generic[P, R]):
    queue: JobQueue | None
    in_process: bool
    hooks: JobHooks
    function: Callable[..., Any]
    name: str
    rules: JobRules
    is_async: bool
    arguments: JobArguments
    context_parameter: str
    results: ResultCodec
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall: ...
    def call_of(self, args: bytes, options: JobOptions) -> JobCall: ...
    def call_with(self, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions) -> JobCall: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, key: str, idempotency_key: str = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, idempotency_key: str, **kwargs: Any) -> JobHandle[R]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle[R]]: ...
    def options(self, **options: Unpack[OptionFields]) -> JobWithOptions[P, R]: ...
    @property
    def own_queue(self) -> JobQueue: ...

class BatchJob(Job[[T], R], Generic[T, R]):
    queue: JobQueue | None
    in_process: bool
    hooks: JobHooks
    function: Callable[..., Any]
    name: str
    rules: JobRules
    is_async: bool
    arguments: JobArguments
    context_parameter: str
    results: ResultCodec
    size: int
    wait: float
    def __call__(self, items: list[T], /) -> Coroutine[Any, Any, Sequence[R | BaseException] | None]: ...

class Job(JobDefinition[P, R], Generic[P, R]):
    queue: JobQueue | None
    in_process: bool
    hooks: JobHooks
    function: Callable[..., Any]
    name: str
    rules: JobRules
    is_async: bool
    arguments: JobArguments
    context_parameter: str
    results: ResultCodec
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall: ...
    def call_of(self, args: bytes, options: JobOptions) -> JobCall: ...
    def call_with(self, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions) -> JobCall: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, key: str, idempotency_key: str = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, idempotency_key: str, **kwargs: Any) -> JobHandle[R]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle[R]]: ...
    def options(self, **options: Unpack[OptionFields]) -> JobWithOptions[P, R]: ...
    @property
    def own_queue(self) -> JobQueue: ...

class JobContext(RunContext):
    queue: str
    worker: str
    id: str
    job: str
    key: str
    meta: dict[str, str]
    flow: FlowPlace | None
    attempt: int
    last_error: str
    enqueued_at: int
    token: int
    tracing: Tracing | None
    def add_emitted(self, messages: Sequence[Outgoing]) -> None: ...
    def call(
        self, job: JobDefinition[P, R] | JobWithOptions[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> CalledJob[R]: ...
    def call_of(self, call: JobCall) -> CalledJob[Any]: ...
    def cancel(self, cancelled: JobCancelledError) -> None: ...
    @property
    def cancelled(self) -> bool: ...
    def changed(self, name: str, /) -> bool: ...
    def check(self) -> None: ...
    def close(self) -> None: ...
    def emit(
        self, subject: str, data: bytes, message_headers: Mapping[str, str | Sequence[str]] | None = None
    ) -> None: ...
    def emitted_messages(self) -> list[Outgoing]: ...
    def end(self) -> Awaitable[None]: ...
    def gather(self, *calls: CalledJob[R], at_once: int | None = None, return_exceptions: bool = False) -> list[R]: ...
    @property
    def has_called(self) -> bool: ...
    @property
    def has_left(self) -> bool: ...
    @property
    def jet(self) -> Any: ...
    def lose(self, reason: str) -> None: ...
    @property
    def lost(self) -> bool: ...
    def now(self) -> datetime: ...
    def on_failure(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def options(
        self,
        *,
        max_attempts: int = 1,
        backoff: BackoffRule = ...,
        permanent: type[BaseException] | Sequence[type[BaseException]] = ...,
        timeout: Seconds | None = None,
    ) -> StepsWithOptions: ...
    def progress(self, fraction: float, note: str = "") -> Awaitable[None]: ...
    def publish(self, name: str, value: object, /) -> None: ...
    def random(self) -> float: ...
    def sleep(self, seconds: Seconds, *, name: str = "") -> None: ...
    @property
    def state(self) -> Any: ...
    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @property
    def steps(self) -> JobSteps: ...
    def stop(self) -> None: ...
    @property
    def stopping(self) -> bool: ...
    def transaction(self, *, timeout: Seconds = 1.0) -> JobTransaction: ...
    def transaction_step(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    def uuid(self) -> UUID: ...
    @overload
    def wait_for(self, name: str, /, *, timeout: Seconds | None = ...) -> Any: ...
    @overload
    def wait_for(self, name: str, kind: type[R], /, *, timeout: Seconds | None = ...) -> R: ...
    @overload
    def wait_for(self, name: str, kind: type[R], /, *, timeout: Seconds | None = ..., default: D) -> R | D: ...

class QueueEvents:
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __iter__(self) -> Iterator[QueueEvent]: ...
    def close(self) -> None: ...
    def next(self, *, timeout: Seconds | None = None) -> QueueEvent | None: ...

class JobHandle(Generic[R_co]):
    id: str
    duplicate: bool
    def cancel(self, *, reason: str = "") -> bool: ...
    def event(self, name: str, kind: Any = ..., *, timeout: Seconds | None = None) -> Any: ...
    def events(self) -> Iterator[tuple[str, Any]]: ...
    def info(self) -> JobInfo: ...
    def outcome(self, *, timeout: Seconds | None = None) -> Outcome: ...
    def send(self, name: str, value: object = None, *, msg_id: str = "") -> bool: ...
    def value(self, *, timeout: Seconds | None = None) -> R_co: ...

class Flow:
    id: str
    name: str
    queue: JobQueue
    @overload
    def add(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FlowNode[R]: ...
    @overload
    def add(self, job: str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]: ...
    def add_with(
        self,
        job: JobDefinition[Any, Any] | str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: JobOptions,
        after: Sequence[int],
        on_failure: OnFailure,
    ) -> FlowNode[Any]: ...
    def enqueue(self) -> FlowHandle: ...
    @property
    def handle(self) -> FlowHandle: ...
    def messages(self) -> list[Outgoing]: ...
    def options(self, **options: Unpack[NodeOptionFields]) -> FlowWithOptions: ...
    def put(self, publish: PublishFlow) -> Callable[[], Awaitable[None]]: ...

class FlowHandle(Generic[V_co]):
    id: str
    def cancel(self, *, reason: str = "") -> bool: ...
    def job(self, node: FlowNode[R]) -> JobHandle[R]: ...
    def outcome(self, *, timeout: Seconds | None = None) -> FlowInfo: ...
    def status(self) -> FlowInfo: ...
    @overload
    def value(self, node: FlowNode[R], *, timeout: Seconds | None = None) -> R: ...
    @overload
    def value(self, *, timeout: Seconds | None = None) -> V_co: ...

class FlowWithOptions:
    @overload
    def add(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FlowNode[R]: ...
    @overload
    def add(self, job: str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]: ...

class JobTransaction:
    result: object
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def ack(self, *messages: Message) -> None: ...
    def bucket(self, bucket: Bucket[T]) -> Bucket[T]: ...
    def enqueue(
        self, job: JobDefinition[Any, R], *args: Any, key: str = "", idempotency_key: str = "", **kwargs: Any
    ) -> JobHandle[R]: ...
    def enqueue_flow(self, flow: EnqueuedFlow[H]) -> H: ...
    def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]: ...
    def nak(self, *messages: Message, delay: Seconds = 0) -> None: ...
    def publish(self, subject: str, data: bytes = b"", **options: Unpack[PublishOptions]) -> PubAck: ...
    def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]: ...
    def queue(self, queue: JobQueue) -> QueueInTransaction: ...
    def savepoint(self) -> Savepoint: ...
    def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any] = ...) -> list[tuple[Any, ...]]: ...
    def term(self, *messages: Message, reason: str = "") -> None: ...

class JobWithOptions(Generic[P, R]):
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

class Queue:
    hooks: JobHooks
    jet: Jet
    names: QueueNames
    name: str
    exclusive: bool
    lease: float
    jobs_by_name: dict[str, Job[Any, Any]]
    def around_run(self, function: F) -> F: ...
    def cancel(self, job_id: str, *, reason: str = "") -> bool: ...
    def claims(self, rules: JobRules | None = None) -> Claims: ...
    def clean(self, *, older_than: Seconds) -> int: ...
    def counts(self) -> JobCounts: ...
    def dead_letters(self, *, key: str | None = None, job: str | None = None) -> Iterator[DeadLetter]: ...
    def delete(self, *, force: bool = False) -> None: ...
    def discard(self, job_id: str) -> None: ...
    def drain(self, *, timeout: Seconds | None = None) -> None: ...
    @overload
    def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...
    def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]: ...
    def events(self, *kinds: QueueEventKind) -> QueueEvents: ...
    def flow(self, flow_id: str) -> FlowHandle: ...
    def flows(self, *, state: FlowState | None = None) -> Iterator[FlowInfo]: ...
    def get(self, job_id: str) -> JobInfo: ...
    def handle(self, job_id: str, job: str = "") -> JobHandle[Any]: ...
    def history(self, state: Ending | None = None) -> Iterator[Outcome]: ...
    @overload
    def job(self, function: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /) -> AsyncContextJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[C, P], R], /) -> SyncContextJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> SyncJob[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str = ...,
        max_attempts: int = ...,
        backoff: BackoffRule = ...,
        permanent: type[BaseException] | Sequence[type[BaseException]] = ...,
        timeout: Seconds | None = ...,
        process: bool = ...,
    ) -> JobDecorator: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str = ...,
        max_attempts: int = ...,
        backoff: BackoffRule = ...,
        permanent: type[BaseException] | Sequence[type[BaseException]] = ...,
        timeout: Seconds | None = ...,
        batch: int,
        wait: Seconds = ...,
    ) -> BatchDecorator: ...
    def jobs(
        self,
        *,
        state: JobState | None = None,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Iterator[JobInfo]: ...
    def lifespan(self, function: F) -> F: ...
    def limit(
        self, *, job: str | None = None, per_key: bool = False, concurrency: int | None = None, rate: Rate | None = None
    ) -> JobLimit: ...
    def limits(self) -> list[JobLimit]: ...
    def move(self, job_id: str, queue: Queue) -> JobHandle[Any]: ...
    def named(self, name: str, *, key: str = "", tenant: str = "") -> JobHandle[Any]: ...
    def new_flow(self, name: str = "") -> Flow: ...
    def oldest_at(self) -> int: ...
    def on_enqueue(self, function: E) -> E: ...
    @classmethod
    def open(
        cls,
        jet: Jet,
        name: str,
        *,
        exclusive: bool | None = None,
        lease: Seconds | None = None,
        history_max_age: Seconds | None = None,
        num_replicas: int | None = None,
        jobs: Jobs | Sequence[Jobs] | None = None,
        create: bool = True,
    ) -> Queue: ...
    def options(self, **options: Unpack[OptionFields]) -> QueueWithOptions: ...
    def pause(self, *, key: str | None = None, job: str | None = None) -> None: ...
    def pause_schedule(self, name: str) -> None: ...
    def purge(self, *, key: str | None = None, job: str | None = None, tenant: str | None = None) -> int: ...
    def redrive(self, job_id: str, args: Mapping[str, object] | None = None) -> JobHandle[Any]: ...
    def redrive_all(self, *, key: str | None = None, job: str | None = None) -> int: ...
    def resume(self, *, key: str | None = None, job: str | None = None) -> None: ...
    def resume_schedule(self, name: str) -> None: ...
    def run_schedule(self, name: str) -> JobHandle[Any]: ...
    def schedule(
        self,
        name: str,
        job: JobDefinition[Any, Any] | str,
        *,
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = None,
        key: str = "",
        priority: int = 0,
        tenant: str = "",
        cron: str | None = None,
        timezone: str | None = None,
        every: Seconds | None = None,
        overlap: str = "skip",
    ) -> JobSchedule: ...
    def schedules(self) -> list[JobSchedule]: ...
    def send(self, job_id: str, name: str, value: object = None, *, msg_id: str = "") -> bool: ...
    def stop(self) -> None: ...
    def stop_worker(self, name: str) -> None: ...
    def tenants(self, limit: int = 100) -> list[TenantCounts]: ...
    def unlimit(self, *, job: str | None = None, per_key: bool = False) -> bool: ...
    def unschedule(self, name: str) -> bool: ...
    def weigh(self, tenant: str, weight: int) -> None: ...
    def weights(self) -> dict[str, int]: ...
    def work(
        self,
        *,
        concurrency: int = 8,
        until_empty: bool = False,
        until_idle: bool = False,
        handle_signals: bool = True,
        grace: Seconds = 30.0,
        max_jobs: int | None = None,
    ) -> None: ...
    def workers(self) -> list[WorkerInfo]: ...

class StepsWithOptions:
    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

class QueueInTransaction:
    @overload
    def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...
    def options(self, **options: Unpack[OptionFields]) -> QueueInTransaction: ...
    def send(self, job_id: str, name: str, value: object = None, *, msg_id: str = "") -> bool: ...

class QueueWithOptions:
    @overload
    def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...

class SyncContextJob(Job[P, R], Generic[P, R]):
    queue: JobQueue | None
    in_process: bool
    hooks: JobHooks
    function: Callable[..., Any]
    name: str
    rules: JobRules
    is_async: bool
    arguments: JobArguments
    context_parameter: str
    results: ResultCodec
    def __call__(self, context: RunContext, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall: ...
    def call_of(self, args: bytes, options: JobOptions) -> JobCall: ...
    def call_with(self, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions) -> JobCall: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, key: str, idempotency_key: str = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, idempotency_key: str, **kwargs: Any) -> JobHandle[R]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle[R]]: ...
    def options(self, **options: Unpack[OptionFields]) -> JobWithOptions[P, R]: ...
    @property
    def own_queue(self) -> JobQueue: ...

class SyncJob(Job[P, R], Generic[P, R]):
    queue: JobQueue | None
    in_process: bool
    hooks: JobHooks
    function: Callable[..., Any]
    name: str
    rules: JobRules
    is_async: bool
    arguments: JobArguments
    context_parameter: str
    results: ResultCodec
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall: ...
    def call_of(self, args: bytes, options: JobOptions) -> JobCall: ...
    def call_with(self, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions) -> JobCall: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, key: str, idempotency_key: str = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, idempotency_key: str, **kwargs: Any) -> JobHandle[R]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]], *, keys: Iterable[str] | None = None
    ) -> list[JobHandle[R]]: ...
    def options(self, **options: Unpack[OptionFields]) -> JobWithOptions[P, R]: ...
    @property
    def own_queue(self) -> JobQueue: ...

class Transaction:
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def ack(self, *messages: Message) -> None: ...
    def bucket(self, bucket: Bucket[T]) -> Bucket[T]: ...
    def enqueue(
        self, job: JobDefinition[Any, R], *args: Any, key: str = "", idempotency_key: str = "", **kwargs: Any
    ) -> JobHandle[R]: ...
    def enqueue_flow(self, flow: EnqueuedFlow[H]) -> H: ...
    def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]: ...
    def nak(self, *messages: Message, delay: Seconds = 0) -> None: ...
    def publish(self, subject: str, data: bytes = b"", **options: Unpack[PublishOptions]) -> PubAck: ...
    def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]: ...
    def queue(self, queue: JobQueue) -> QueueInTransaction: ...
    def savepoint(self) -> Savepoint: ...
    def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any] = ...) -> list[tuple[Any, ...]]: ...
    def term(self, *messages: Message, reason: str = "") -> None: ...
