"""Every metric there is: its name, its kind, its labels, what it says.

Streams and consumers have the names of NATS's Prometheus exporter, so that dashboards made for it fit. Labels are names
of streams, consumers, queues, elections and states: never keys, subjects or ids, of which there may be millions.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple


class Metric(NamedTuple):
    """One metric; a counter's name is without the ``_total`` that Prometheus gives it."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    text: str


_STREAM: Final = ("stream_name",)
_CONSUMER: Final = ("stream_name", "consumer_name")
_QUEUE: Final = ("queue",)
_LIMIT: Final = ("queue", "limit")

CATALOGUE: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("jetstream_server_total_streams", "gauge", (), "Streams"),
        Metric("jetstream_server_total_consumers", "gauge", (), "Consumers"),
        Metric("jetstream_server_total_messages", "gauge", (), "Messages in all streams"),
        Metric("jetstream_server_total_message_bytes", "gauge", (), "Bytes of the messages in all streams"),
        Metric("jetstream_stream_total_messages", "gauge", _STREAM, "Messages in a stream"),
        Metric("jetstream_stream_total_bytes", "gauge", _STREAM, "Bytes of a stream's messages"),
        Metric("jetstream_stream_first_seq", "gauge", _STREAM, "First sequence of a stream"),
        Metric(
            "jetstream_stream_last_seq", "gauge", _STREAM, "Last sequence of a stream: its rate is what is published"
        ),
        Metric("jetstream_stream_subject_count", "gauge", _STREAM, "Subjects that have messages in a stream"),
        Metric("jetstream_stream_consumer_count", "gauge", _STREAM, "Consumers of a stream"),
        Metric("jetstream_stream_limit_messages", "gauge", _STREAM, "Most messages a stream keeps, if it has a limit"),
        Metric("jetstream_stream_limit_bytes", "gauge", _STREAM, "Most bytes a stream keeps, if it has a limit"),
        Metric("jetstream_consumer_delivered_stream_seq", "gauge", _CONSUMER, "Last sequence delivered"),
        Metric("jetstream_consumer_delivered_consumer_seq", "gauge", _CONSUMER, "Deliveries so far"),
        Metric("jetstream_consumer_ack_floor_stream_seq", "gauge", _CONSUMER, "All up to this sequence is settled"),
        Metric("jetstream_consumer_ack_floor_consumer_seq", "gauge", _CONSUMER, "All up to this delivery is settled"),
        Metric("jetstream_consumer_num_pending", "gauge", _CONSUMER, "Matching messages that were never delivered"),
        Metric("jetstream_consumer_num_ack_pending", "gauge", _CONSUMER, "Messages delivered and not settled"),
        Metric("jetstream_consumer_num_redelivered", "gauge", _CONSUMER, "Unsettled messages delivered repeatedly"),
        Metric("jetstream_consumer_num_waiting", "gauge", _CONSUMER, "Pulls that wait"),
        Metric("pelton_consumer_lag", "gauge", _CONSUMER, "Sequences after the last below which all is settled"),
        Metric("pelton_consumer_paused", "gauge", _CONSUMER, "1 while a consumer is paused"),
        Metric("pelton_queue_jobs", "gauge", ("queue", "state"), "Jobs that have not ended, by state"),
        Metric("pelton_queue_history_jobs", "gauge", ("queue", "state"), "Ended jobs in the history, by state"),
        Metric("pelton_queue_jobs_ended", "counter", _QUEUE, "Jobs that have ended"),
        Metric("pelton_queue_jobs_dead", "counter", _QUEUE, "Jobs that have become dead letters"),
        Metric("pelton_queue_dead_letters", "gauge", _QUEUE, "Failed jobs that can be redriven"),
        Metric(
            "pelton_queue_oldest_job_age_seconds", "gauge", _QUEUE, "For how long the oldest job that is due has been"
        ),
        Metric("pelton_queue_last_ended_timestamp_seconds", "gauge", _QUEUE, "When a job ended last"),
        Metric("pelton_queue_job_wait_seconds", "gauge", ("queue", "quantile"), "Wait of the jobs that ended last"),
        Metric("pelton_queue_job_run_seconds", "gauge", ("queue", "quantile"), "Run time of the jobs that ended last"),
        Metric("pelton_queue_workers", "gauge", _QUEUE, "Workers, each as it told in the last 30 s"),
        Metric("pelton_queue_longest_running_seconds", "gauge", _QUEUE, "How long the oldest running attempt has run"),
        Metric("pelton_queue_recent_flows", "gauge", ("queue", "state"), "Of the 100 flows that began last, by state"),
        Metric("pelton_queue_schedules", "gauge", ("queue", "state"), "Schedules, active and paused"),
        Metric("pelton_limit_concurrency", "gauge", _LIMIT, "Most jobs that may run at a time, if it says so"),
        Metric("pelton_limit_running", "gauge", _LIMIT, "Jobs that hold slots of a limit"),
        Metric("pelton_limit_fullest", "gauge", _LIMIT, "Jobs that hold slots of a limit, at the key that has most"),
        Metric("pelton_limit_held", "gauge", _LIMIT, "Jobs that wait for a limit"),
        Metric("pelton_limit_next_start_seconds", "gauge", _LIMIT, "In how long the rate of a limit lets a job start"),
        Metric("pelton_election_has_leader", "gauge", ("election",), "1 while somebody leads"),
        Metric("pelton_election_token", "gauge", ("election",), "Fencing token of the leader"),
        Metric("pelton_store_file_bytes", "gauge", (), "Size of the store file"),
        Metric("pelton_store_log_bytes", "gauge", (), "Size of the store's write-ahead log"),
        Metric("pelton_store_quarantined_messages", "gauge", (), "Damaged messages, which are never delivered"),
        Metric("pelton_store_slow_syncs", "counter", (), "Syncs to disk of a second or more, by this process"),
        Metric("pelton_store_writer_waits", "counter", (), "Waits of a second or more to write, by this process"),
        Metric("pelton_store_checkpoints_blocked", "counter", (), "Times this process could not shorten the log"),
        Metric("pelton_store_disk_free_bytes", "gauge", (), "Free space on the disk of the store"),
        Metric("pelton_omitted", "gauge", ("kind",), "Streams, consumers, queues or elections beyond the limit"),
    )
}
