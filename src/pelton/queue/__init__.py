"""Jobs: durable, typed, retried, exclusive by key. Built on streams only."""

from pelton.queue.claimed import ClaimedJob
from pelton.queue.claims import Claims
from pelton.queue.context import JobContext
from pelton.queue.handle import JobHandle
from pelton.queue.job import Job, JobCall, JobRules
from pelton.queue.model import Attempt, DeadLetter, Envelope, JobCounts, JobInfo, JobState, Outcome
from pelton.queue.queue import Queue
from pelton.queue.transaction import JobTransaction, Transaction

__all__ = [
    "Attempt",
    "ClaimedJob",
    "Claims",
    "DeadLetter",
    "Envelope",
    "Job",
    "JobCall",
    "JobContext",
    "JobCounts",
    "JobHandle",
    "JobInfo",
    "JobRules",
    "JobState",
    "JobTransaction",
    "Outcome",
    "Queue",
    "Transaction",
]
