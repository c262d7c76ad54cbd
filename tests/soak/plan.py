"""The soak's store: a stream of every retention, consumers of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pelton
from tests.kit.deliveries import Promise

SUBJECTS: Final = 6
BOUND: Final = 400
"""How many messages the stream with limits holds."""

STREAMS: Final[dict[str, dict[str, Any]]] = {
    "log": {},
    "bounded": {"max_msgs": BOUND},
    "work": {"retention": "workqueue"},
    "wanted": {"retention": "interest"},
}
GROUP: Final = {"priority_groups": ["g"], "max_deliver": 3}
LISTENED: Final = {"deliver_group": "q", "ack_wait": 0.8, "max_ack_pending": 40}
CONSUMERS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("log", "plain"): {"max_deliver": 2, "ack_wait": 0.6},
    ("log", "none"): {"ack_policy": "none"},
    ("log", "all"): {"ack_policy": "all", "max_ack_pending": 60, "ack_wait": 1.0},
    ("log", "backoff"): {"backoff": [0.2, 0.5, 1.0], "max_deliver": 3, "max_ack_pending": 30},
    ("log", "exclusive"): {"max_ack_pending_per_subject": 1, "ack_wait": 0.5, "max_deliver": 2},
    ("log", "filtered"): {"filter_subjects": ["log.1", "log.3"], "ack_wait": 0.5},
    ("log", "pinned"): {**GROUP, "priority_policy": "pinned_client", "priority_timeout": 0.5, "ack_wait": 0.7},
    ("log", "ranked"): {**GROUP, "priority_policy": "prioritized", "ack_wait": 0.7},
    ("log", "flowing"): {**GROUP, "priority_policy": "overflow", "ack_wait": 0.7},
    ("log", "pushed"): {"deliver_subject": "to.log", **LISTENED},
    ("bounded", "plain"): {"ack_wait": 0.5, "max_ack_pending": 50},
    ("bounded", "exclusive"): {"max_ack_pending_per_subject": 1, "ack_wait": 0.5},
    ("work", "exclusive"): {"max_ack_pending_per_subject": 1, "ack_wait": 0.6},
    ("wanted", "plain"): {"ack_wait": 0.5, "max_deliver": 2},
    ("wanted", "all"): {"ack_policy": "all", "ack_wait": 1.0, "filter_subject": "wanted.*"},
    ("wanted", "pushed"): {
        "deliver_subject": "to.wanted",
        "deliver_group": "q",
        "ack_wait": 0.8,
        "max_ack_pending": 40,
    },
}
PUSHED: Final = tuple(key for key, fields in CONSUMERS.items() if "deliver_subject" in fields)


async def make_store(path: Path) -> None:
    """Make the streams and consumers, and a stream of advisories about messages that were given up."""
    async with pelton.open(path) as jet:
        await jet.create_stream("told", subjects=["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"])
        for name, fields in STREAMS.items():
            await jet.create_stream(name, subjects=[f"{name}.*"], **fields)
        for (stream, name), fields in CONSUMERS.items():
            await (await jet.stream(stream)).create_consumer(durable_name=name, **fields)


def promises() -> list[Promise]:
    """Return what the checker needs to know of each consumer."""
    found = []
    for (stream, name), fields in CONSUMERS.items():
        filters = fields.get("filter_subjects") or [fields.get("filter_subject", ">")]
        promise = Promise(
            stream=stream,
            consumer=name,
            filters=tuple(filters),
            ack_policy=fields.get("ack_policy", "explicit"),
            max_deliver=fields.get("max_deliver", -1),
            per_subject=fields.get("max_ack_pending_per_subject", 0),
        )
        found.append(promise)
    return found
