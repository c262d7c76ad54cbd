"""The server's defaults: each line was read from a reply of nats-server 2.15."""

from typing import Any

import pytest

from pelton import api
from pelton.api.config import sealed_stream


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ({"subjects": ["a"]}, 120),
        ({"subjects": ["a"], "max_age": 60}, 60),
        ({"subjects": ["a"], "max_age": 600}, 120),
        ({"subjects": ["a"], "duplicate_window": 5}, 5),
        ({"sources": [{"name": "b"}]}, 0),
        ({"subjects": ["a"], "sources": [{"name": "b"}]}, 0),
        ({"mirror": {"name": "b"}}, 0),
    ],
)
def test_duplicate_window(given: dict[str, Any], window: int) -> None:
    assert api.resolved_stream(api.stream_config("a", **given)).duplicate_window == window


def test_zero_limits_are_none_and_a_stream_takes_its_own_name() -> None:
    stream = api.resolved_stream(api.stream_config("a", max_msgs=0, max_bytes=0, num_replicas=0))
    assert (stream.max_msgs, stream.max_bytes, stream.num_replicas, stream.subjects) == (-1, -1, 1, ("a",))


def test_sealing_denies_every_change() -> None:
    config = api.stream_config("a", sealed=True, max_age=1, allow_rollup_hdrs=True)
    stream = sealed_stream(api.resolved_stream(config))
    assert (stream.discard, stream.deny_delete, stream.deny_purge) == ("new", True, True)
    assert (stream.max_age, stream.allow_rollup_hdrs) == (0, False)


def test_what_says_nothing_is_left_out() -> None:
    config = api.stream_config("a", persist_mode="default", placement={}, metadata={"_nats.ver": "2.15.1", "k": "v"})
    stream = api.resolved_stream(config)
    assert (stream.persist_mode, stream.placement, stream.metadata) == ("", None, {"k": "v"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"durable_name": "c"}, {"name": "c", "ack_wait": 30, "max_ack_pending": 1000}),
        ({"durable_name": "c"}, {"max_waiting": 512, "inactive_threshold": 0, "max_deliver": -1}),
        ({"name": "c"}, {"inactive_threshold": 5, "durable_name": ""}),
        ({"ack_policy": "none"}, {"ack_wait": 0, "max_ack_pending": 0}),
        ({"deliver_subject": "d"}, {"max_waiting": 0}),
        ({"priority_groups": ["g"], "priority_policy": "pinned_client"}, {"priority_timeout": 120}),
        ({"backoff": [2, 8], "max_deliver": 3}, {"ack_wait": 2, "max_deliver": 3}),
        ({"ack_wait": 1, "max_ack_pending": 7, "max_waiting": 3}, {"ack_wait": 1, "max_ack_pending": 7}),
    ],
)
def test_consumers(given: dict[str, Any], expected: dict[str, Any]) -> None:
    consumer = api.resolved_consumer(api.consumer_config(**given))
    assert {key: getattr(consumer, key) for key in expected} == expected


def test_a_stream_limits_its_consumers() -> None:
    limits = api.ConsumerLimits(inactive_threshold=1, max_ack_pending=10)
    consumer = api.resolved_consumer(api.consumer_config(durable_name="c"), limits)
    assert (consumer.inactive_threshold, consumer.max_ack_pending) == (1, 10)


def test_resolving_twice_changes_nothing() -> None:
    stream = api.resolved_stream(api.stream_config("a"))
    assert api.resolved_stream(stream) == stream
    consumer = api.resolved_consumer(api.consumer_config(name="c"))
    assert api.resolved_consumer(consumer) == consumer
