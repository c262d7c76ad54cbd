"""The pools of random programs: fields with a few values each, so few that they often collide."""

from __future__ import annotations

from typing import Any, Final

SECOND: Final = 1_000_000_000
HOUR: Final = 3600 * SECOND
LATER, EARLIER = "2099-01-01T00:00:00Z", "2001-01-01T00:00:00Z"

SUBJECTS: Final = ("s.a", "s.b", "s.b.c", "t.a")
FILTERS: Final = ("s.a", "s.b", "s.>", "s.*", "s.*.c", ">", "t.>", "nothing")
SIZES: Final = (0, 1, 10, 40)
Pool = dict[str, tuple[Any, ...]]

# No mirrors and sources: their messages arrive at unpredictable times.
STREAM_POOL: Final[Pool] = {
    "retention": ("limits", "workqueue", "interest"),
    "discard": ("old", "new"),
    "discard_new_per_subject": (True, False),
    "max_msgs": (1, 3, 8, 0),
    "max_bytes": (60, 150, 400, 0),
    "max_msgs_per_subject": (1, 2, 3, 0),
    "max_msg_size": (30, 10, 0),
    "max_consumers": (1, 2, 0),
    "max_age": (HOUR, 60 * SECOND, 1),
    "duplicate_window": (60 * SECOND, HOUR, 1, 0),
    "description": ("one", "two"),
    "storage": ("file", "memory"),
    "compression": ("none", "s2"),
    "allow_direct": (True, False),
    "mirror_direct": (True,),
    "sealed": (True,),
    "deny_delete": (True, False),
    "deny_purge": (True, False),
    "allow_rollup_hdrs": (True, False),
    "first_seq": (5,),
    "subject_transform": ({"src": "s.a", "dest": "s.z"}, {"src": "s.*", "dest": "s.t.{{wildcard(1)}}"}),
    "republish": (
        {"src": "s.a", "dest": "t.a"},
        {"src": ">", "dest": "t.>"},
        {"src": "s.*", "dest": "t.{{wildcard(1)}}", "headers_only": True},
        {"src": "s.>", "dest": "s.>"},
    ),
    "metadata": ({"a": "b"}, {}),
    "consumer_limits": ({"max_ack_pending": 5}, {"inactive_threshold": 60 * SECOND}, {}),
    "allow_msg_ttl": (True, False),
    "subject_delete_marker_ttl": (HOUR, 60 * SECOND, 1),
    "allow_msg_counter": (True, False),
    "allow_atomic": (True, False),
    "allow_batched": (True, False),
    "allow_msg_schedules": (True, False),
    "persist_mode": ("default",),
}
# What is republished has headers that tell times, and how long those are is chance: no limit in bytes.
CAPTURING_POOL: Final = {name: values for name, values in STREAM_POOL.items() if name != "max_bytes"}

# Each is a stream with one special feature; most are plain.
FLAVOURS: Final[tuple[dict[str, Any], ...]] = (
    *({},) * 6,
    {"allow_msg_counter": True},
    {"allow_msg_counter": True, "allow_atomic": True},
    {"allow_atomic": True},
    {"republish": {"src": "s.>", "dest": "t.>"}},
    {"allow_msg_ttl": True},
    {"allow_msg_ttl": True, "subject_delete_marker_ttl": HOUR},
    {"allow_msg_schedules": True, "allow_msg_ttl": True},
    {"retention": "interest"},
    {"retention": "interest", "max_msgs": 3},
    {"retention": "workqueue"},
    {"allow_direct": True, "allow_rollup_hdrs": True},
)

# Deliveries at their original pace have unpredictable times, so no replay policy here.
CONSUMER_POOL: Final[Pool] = {
    "deliver_policy": ("all", "last", "new", "by_start_sequence", "last_per_subject", "by_start_time"),
    "opt_start_seq": (1, 3, 7),
    "opt_start_time": (EARLIER, LATER),
    "ack_policy": ("explicit", "all", "none", "flow_control"),
    "ack_wait": (60 * SECOND, HOUR, -1),
    "max_deliver": (1, 2, 5, -1),
    "backoff": ((60 * SECOND,), (60 * SECOND, HOUR)),
    "filter_subject": FILTERS,
    "filter_subjects": (("s.a", "s.b"), ("s.a", "s.b.>"), ("s.>", "s.a"), ("s.*.c",), ("",)),
    "max_ack_pending": (1, 2, 5, 1000, -1),
    "max_waiting": (1, 5),
    "max_batch": (1, 2),
    "max_bytes": (60, 100),
    "max_expires": (SECOND, 1),
    "inactive_threshold": (60 * SECOND, HOUR),
    "description": ("one", "two"),
    "metadata": ({"a": "b"},),
    "headers_only": (True,),
    "mem_storage": (True,),
    "durable_name": ("",),
    "num_replicas": (1, -1),
    "sample_freq": ("100%", "50", "x"),
    "rate_limit_bps": (1000,),
    "deliver_subject": ("push.c", "s.a", "push.*", "push..c"),
    "deliver_group": ("g",),
    "flow_control": (True,),
    "idle_heartbeat": (SECOND, 60 * SECOND, 1),
    "direct": (True,),
    "pause_until": (LATER, EARLIER),
    "priority_groups": (("g",), ("h",), ("",), ("a b",)),
    "priority_policy": ("overflow", "pinned_client", "prioritized", "none"),
    "priority_timeout": (60 * SECOND,),
}
CONSUMER_FLAVOURS: Final[tuple[dict[str, Any], ...]] = (
    *({},) * 8,
    {"deliver_policy": "last_per_subject", "filter_subject": ">"},
    {"deliver_policy": "last_per_subject", "filter_subjects": ("s.a", "s.b")},
    {"ack_policy": "all"},
    {"ack_policy": "none"},
    {"max_deliver": 2},
    {"backoff": (60 * SECOND, HOUR), "max_deliver": 3},
    {"priority_groups": ("g",), "priority_policy": "overflow"},
    {"priority_groups": ("g",), "priority_policy": "prioritized"},
    {"priority_groups": ("g",), "priority_policy": "pinned_client", "priority_timeout": HOUR},
    {"deliver_subject": "push.c"},
    {"deliver_subject": "push.c", "flow_control": True, "idle_heartbeat": SECOND},
)

EXPECTATIONS: Final[Pool] = {
    "Nats-Msg-Id": ("one", "two", "three"),
    "Nats-Expected-Stream": ("S", "S", "T"),
    "Nats-Expected-Last-Sequence": ("0", "1", "2", "3", "x"),
    "Nats-Expected-Last-Subject-Sequence": ("0", "1", "2", "3"),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("s.b", "s.>", "s.*.c"),
    "Nats-Expected-Last-Msg-Id": ("one", "two", ""),
}
HEADERS: Final[tuple[Pool, ...]] = (
    {},
    {},
    {"Nats-Msg-Id": ("one", "two", "three")},
    {"Color": ("red", "")},
    {"Nats-Rollup": ("sub", "all", "no"), "Nats-Msg-Id": ("one",)},
    EXPECTATIONS,
)
MALFORMED_LIVES: Final = ("0", "-1", "x", "500ms")
FEATURE_HEADERS: Final[tuple[Pool, ...]] = (
    {"Nats-Incr": ("1", "+2", "-3", "0", "12345678901234567890123", "x", ""), "Color": ("red",)},
    {"Nats-TTL": ("1h", "60", "never", *MALFORMED_LIVES)},
    {
        "Nats-Schedule": ("@at 2099-01-01T00:00:00Z", "@every 1h", "0 0 0 1 1 *", "@every 1ms", "x", ""),
        "Nats-Schedule-Target": ("s.b", "s.*", "t.a", "s.a", "s.a.b"),
        "Nats-Schedule-TTL": ("1h", "x"),
        "Nats-Schedule-Source": ("s.b", "s.*"),
        "Nats-Schedule-Rollup": ("sub", "all"),
        "Nats-Schedule-Time-Zone": ("Europe/Berlin", "x"),
        "Nats-TTL": ("1h",),
    },
)
# Errors in a message, to be combined: which of them is reported?
FAULTS: Final[Pool] = {
    **EXPECTATIONS,
    "Nats-Expected-Last-Sequence": ("0", "1", "9"),
    "Nats-Incr": ("1", "x"),
    "Nats-TTL": ("1h",),
    "Nats-Schedule": ("@at 2099-01-01T00:00:00Z", "x"),
    "Nats-Schedule-Time-Zone": ("x",),
    "Nats-Rollup": ("sub", "all", "no"),
    "Nats-Stream-Source": ("a 1 > > a",),
    "Nats-Required-Api-Level": ("99",),
}
BATCH_HEADERS: Final[Pool] = {
    "Nats-Batch-Id": ("b1", "b1", "b1", "b2", ""),
    "Nats-Batch-Sequence": ("1", "2", "3", "0", "x"),
    "Nats-Batch-Commit": ("1", "eob", "x"),
    "Nats-Msg-Id": ("one",),
}

FETCHES: Final[tuple[Pool, ...]] = (
    {},
    {},
    {},
    {"max_bytes": (60, 100)},
    {"expires_ns": (SECOND, 2 * SECOND)},
    {"group": ("g", "g", "g", "h"), "min_pending": (1, 3), "min_ack_pending": (1, 2), "priority": (0, 5, 11)},
)
DIRECT: Final[tuple[Pool, ...]] = (
    {"seq": (1, 2, 5, 20)},
    {"last_by_subj": FILTERS},
    {"next_by_subj": FILTERS, "seq": (1, 3)},
    {"start_time": (EARLIER, LATER), "next_by_subj": FILTERS},
    {"batch": (1, 2, 10), "seq": (1, 2, 5), "next_by_subj": FILTERS, "max_bytes": (30, 60, 100)},
    {"batch": (2, 10), "start_time": (EARLIER, LATER), "max_bytes": (60,)},
    {
        "multi_last": (("s.a",), ("s.>",), (">",), ("s.a", "s.b"), ("s.a", "s.>"), ("nothing",)),
        "batch": (1, 2, 10),
        "up_to_seq": (1, 3, 20),
        "up_to_time": (EARLIER, LATER),
        "seq": (2,),
        "max_bytes": (60,),
    },
)
