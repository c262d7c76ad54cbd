"""Jobs: durable, typed, retried, exclusive by key. Built on streams only."""

from pelton.queue.context import JobContext
from pelton.queue.job import Call, Job, JobRules
from pelton.queue.model import TRANSITIONS, Attempt, DeadLetter, Envelope, JobCounts, JobInfo, JobState, Outcome
from pelton.queue.queue import JobHandle, Queue
from pelton.queue.transaction import JobTransaction, Transaction

__all__ = [
    "TRANSITIONS",
    "Attempt",
    "Call",
    "DeadLetter",
    "Envelope",
    "Job",
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
