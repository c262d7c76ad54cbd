"""The read model for operators: what a store or cluster holds, and how it is doing.

Every function takes an open :class:`pelton.Jet` and returns frozen structs. On a file opened with ``read_only=True``,
each answer is a snapshot that never takes the writer.
"""

from pelton.observe.alarms import Alarm as Alarm
from pelton.observe.alarms import HealthFacts as HealthFacts
from pelton.observe.alarms import alarms_of as alarms_of
from pelton.observe.alarms import health_facts as health_facts
from pelton.observe.audit import AuditEntry as AuditEntry
from pelton.observe.audit import audit_entries as audit_entries
from pelton.observe.audit import record_action as record_action
from pelton.observe.finding import find_jobs as find_jobs
from pelton.observe.finding import job_with_details as job_with_details
from pelton.observe.finding import jobs_of_key as jobs_of_key
from pelton.observe.finding import key_counts as key_counts
from pelton.observe.holdings import bucket_summaries as bucket_summaries
from pelton.observe.holdings import consumer_summaries as consumer_summaries
from pelton.observe.holdings import election_summaries as election_summaries
from pelton.observe.holdings import lock_summaries as lock_summaries
from pelton.observe.holdings import object_summaries as object_summaries
from pelton.observe.holdings import store_summary as store_summary
from pelton.observe.holdings import stream_rates as stream_rates
from pelton.observe.holdings import stream_summaries as stream_summaries
from pelton.observe.job_lists import group_dead_letters as group_dead_letters
from pelton.observe.job_lists import list_dead_letters as list_dead_letters
from pelton.observe.job_lists import list_jobs as list_jobs
from pelton.observe.queues import dead_letter as dead_letter
from pelton.observe.queues import dead_letters as dead_letters
from pelton.observe.queues import ended_jobs as ended_jobs
from pelton.observe.queues import flow_details as flow_details
from pelton.observe.queues import flow_summaries as flow_summaries
from pelton.observe.queues import job_details as job_details
from pelton.observe.queues import job_schedules as job_schedules
from pelton.observe.queues import limit_summaries as limit_summaries
from pelton.observe.queues import queue_summaries as queue_summaries
from pelton.observe.queues import queue_summary as queue_summary
from pelton.observe.queues import tenant_counts as tenant_counts
from pelton.observe.queues import unfinished_jobs as unfinished_jobs
from pelton.observe.queues import worker_summaries as worker_summaries
from pelton.observe.summaries import BucketSummary as BucketSummary
from pelton.observe.summaries import ConsumerSummary as ConsumerSummary
from pelton.observe.summaries import DeadLetterPage as DeadLetterPage
from pelton.observe.summaries import ElectionSummary as ElectionSummary
from pelton.observe.summaries import ErrorGroup as ErrorGroup
from pelton.observe.summaries import ErrorGroups as ErrorGroups
from pelton.observe.summaries import JobDetails as JobDetails
from pelton.observe.summaries import JobPage as JobPage
from pelton.observe.summaries import JobSearch as JobSearch
from pelton.observe.summaries import JobSelection as JobSelection
from pelton.observe.summaries import JobsOfKey as JobsOfKey
from pelton.observe.summaries import KeyCount as KeyCount
from pelton.observe.summaries import KeyCounts as KeyCounts
from pelton.observe.summaries import LimitSummary as LimitSummary
from pelton.observe.summaries import LockSummary as LockSummary
from pelton.observe.summaries import ObjectsSummary as ObjectsSummary
from pelton.observe.summaries import QueueSummary as QueueSummary
from pelton.observe.summaries import StoreSummary as StoreSummary
from pelton.observe.summaries import StreamSummary as StreamSummary
from pelton.observe.summaries import TimeSpread as TimeSpread
from pelton.observe.summaries import WorkerSummary as WorkerSummary
