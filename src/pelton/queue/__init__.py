"""Jobs: durable, typed, retried, exclusive by key. Built on streams only."""

from pelton.queue.backing.setup import queue_names
from pelton.queue.define.arguments import JobCodec
from pelton.queue.define.job import (
    AsyncContextJob,
    AsyncJob,
    Job,
    JobCall,
    JobDecorator,
    JobDefinition,
    JobHandle,
    JobWithOptions,
    SyncContextJob,
    SyncJob,
)
from pelton.queue.define.registry import BatchDecorator, BatchJob, Jobs
from pelton.queue.enqueue.announcing import QueueEvent, QueueEventKind
from pelton.queue.enqueue.enqueuer import QueueWithOptions
from pelton.queue.enqueue.transaction import JobTransaction, QueueInTransaction, Transaction
from pelton.queue.flow.builder import FlowExtension, FlowNode, FlowWithOptions
from pelton.queue.flow.flows import Flow, FlowHandle, FlowInfo, FlowNodeInfo
from pelton.queue.inspect.events import QueueEvents
from pelton.queue.model.limits import JobLimit, Rate
from pelton.queue.model.options import JobOptions, JobRules
from pelton.queue.model.states import (
    Attempt,
    AttemptError,
    DeadLetter,
    Envelope,
    JobCounts,
    JobInfo,
    JobProgress,
    JobSchedule,
    JobState,
    Outcome,
    TenantCounts,
    WorkerInfo,
)
from pelton.queue.queue import Queue
from pelton.queue.run.claims import ClaimedJob, Claims
from pelton.queue.run.context import JobContext

__all__ = [
    "AsyncContextJob",
    "AsyncJob",
    "Attempt",
    "AttemptError",
    "BatchDecorator",
    "BatchJob",
    "ClaimedJob",
    "Claims",
    "DeadLetter",
    "Envelope",
    "Flow",
    "FlowExtension",
    "FlowHandle",
    "FlowInfo",
    "FlowNode",
    "FlowNodeInfo",
    "FlowWithOptions",
    "Job",
    "JobCall",
    "JobCodec",
    "JobContext",
    "JobCounts",
    "JobDecorator",
    "JobDefinition",
    "JobHandle",
    "JobInfo",
    "JobLimit",
    "JobOptions",
    "JobProgress",
    "JobRules",
    "JobSchedule",
    "JobState",
    "JobTransaction",
    "JobWithOptions",
    "Jobs",
    "Outcome",
    "Queue",
    "QueueEvent",
    "QueueEventKind",
    "QueueEvents",
    "QueueInTransaction",
    "QueueWithOptions",
    "Rate",
    "SyncContextJob",
    "SyncJob",
    "TenantCounts",
    "Transaction",
    "WorkerInfo",
    "queue_names",
]
