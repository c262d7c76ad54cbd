"""The cases, in the order of the report."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.cases import (
    backup,
    big_store,
    buckets,
    cross_process,
    encryption,
    feed,
    fetch_ack_batch,
    fetch_ack_each,
    fetch_one,
    get_batch,
    get_by_sequence,
    get_last,
    idle_pickup,
    noop_jobs,
    on_server,
    publish_batch,
    publish_each,
    publish_in_flight,
    publish_mapped,
    push_callback,
    sourcing,
    transactions,
)

CASES: tuple[Case, ...] = (
    publish_each.CASE,
    publish_in_flight.CASE,
    publish_batch.CASE,
    publish_mapped.CASE,
    encryption.CASE,
    sourcing.CASE,
    fetch_ack_each.CASE,
    fetch_ack_batch.CASE,
    fetch_one.CASE,
    push_callback.CASE,
    get_by_sequence.CASE,
    get_last.CASE,
    get_batch.CASE,
    transactions.CASE,
    noop_jobs.CASE,
    idle_pickup.CASE,
    cross_process.CASE,
    big_store.CASE,
    on_server.CASE,
    backup.CASE,
    feed.CASE,
    *buckets.ALL,
)
