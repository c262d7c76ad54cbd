"""The read model for operators: what a store or cluster holds, and how it goes.

Every function takes an open :class:`pelton.Jet` and returns frozen structs. On a file opened with ``read_only=True``,
each answer is a snapshot that never takes the writer.
"""

from pelton.observe.buckets import bucket_summaries, object_summaries
from pelton.observe.finding import find_jobs
from pelton.observe.flows import flow_details, flow_summaries
from pelton.observe.jobs import job_with_details
from pelton.observe.keys import jobs_of_key, key_counts
from pelton.observe.limits import limit_summaries
from pelton.observe.locks import election_summaries, lock_summaries
from pelton.observe.queue_history import ended_jobs, worker_summaries
from pelton.observe.queues import (
    dead_letter,
    dead_letters,
    job_details,
    job_schedules,
    jobs_underway,
    queue_summaries,
    queue_summary,
    tenant_counts,
    unfinished_jobs,
)
from pelton.observe.store import store_summary
from pelton.observe.streams import consumer_summaries, stream_summaries
from pelton.observe.summaries import (
    BucketSummary,
    ConsumerSummary,
    ElectionSummary,
    JobDetails,
    JobSearch,
    JobsOfKey,
    KeyCount,
    KeyCounts,
    LimitSummary,
    LockSummary,
    ObjectsSummary,
    QueueSummary,
    StoreSummary,
    StreamSummary,
    TimeSpread,
    WorkerSummary,
)

__all__ = [
    "BucketSummary",
    "ConsumerSummary",
    "ElectionSummary",
    "JobDetails",
    "JobSearch",
    "JobsOfKey",
    "KeyCount",
    "KeyCounts",
    "LimitSummary",
    "LockSummary",
    "ObjectsSummary",
    "QueueSummary",
    "StoreSummary",
    "StreamSummary",
    "TimeSpread",
    "WorkerSummary",
    "bucket_summaries",
    "consumer_summaries",
    "dead_letter",
    "dead_letters",
    "election_summaries",
    "ended_jobs",
    "find_jobs",
    "flow_details",
    "flow_summaries",
    "job_details",
    "job_schedules",
    "job_with_details",
    "jobs_of_key",
    "jobs_underway",
    "key_counts",
    "limit_summaries",
    "lock_summaries",
    "object_summaries",
    "queue_summaries",
    "queue_summary",
    "store_summary",
    "stream_summaries",
    "tenant_counts",
    "unfinished_jobs",
    "worker_summaries",
]
