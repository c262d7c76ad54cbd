"""Jobs: durable, typed, retried, exclusive by key. Built on streams only."""

from pelton.queue.define.handle import JobHandle
from pelton.queue.define.job import Job, JobCall
from pelton.queue.enqueue.transaction import JobTransaction, Transaction
from pelton.queue.model.rules import JobRules
from pelton.queue.model.states import Attempt, DeadLetter, Envelope, JobCounts, JobInfo, JobState, Outcome
from pelton.queue.queue import Queue
from pelton.queue.run.claimed import ClaimedJob
from pelton.queue.run.claims import Claims
from pelton.queue.run.context import JobContext

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
