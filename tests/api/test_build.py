"""Builders: user input is converted for the wire, and mistakes are reported at once."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from pelton import api
from pelton.api.times import SECOND


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        (0, 0),
        (3, 3 * SECOND),
        (0.25, SECOND // 4),
        (1e-3, SECOND // 1000),
        (timedelta(hours=1, microseconds=1), 3600 * SECOND + 1000),
        (api.Duration.of_ns(1), 1),
    ],
)
def test_durations(value: Any, nanoseconds: int) -> None:
    assert api.stream_config("s", max_age=value).max_age.ns == nanoseconds
    assert api.consumer_config(backoff=[value]).backoff == (api.Duration.of_ns(nanoseconds),)


@pytest.mark.parametrize("value", ["3", True, None, -1, -0.5, 1e-9, math.nan, math.inf, 1e12, timedelta(-1)])
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(api.ConfigError, match="consumer 'c': ack_wait is "):
        api.consumer_config(name="c", ack_wait=value)


def test_durations_of_nested_structs() -> None:
    config = api.stream_config("s", consumer_limits={"inactive_threshold": timedelta(seconds=2)})
    assert config.consumer_limits == api.ConsumerLimits(inactive_threshold=2)


def test_times_in_any_zone() -> None:
    moment = datetime(2026, 1, 2, 4, 4, 5, 600, tzinfo=timezone(timedelta(hours=1)))
    for value in (moment, "2026-01-02T03:04:05.0006Z", "2026-01-02T04:04:05.0006+01:00"):
        assert api.consumer_config(opt_start_time=value).opt_start_time == "2026-01-02T03:04:05.0006Z"
    source = {"name": "a", "opt_start_time": datetime(2026, 1, 1, tzinfo=UTC)}
    assert api.stream_config("s", sources=[source]).sources[0].opt_start_time == "2026-01-01T00:00:00Z"
    assert api.consumer_config(pause_until="").pause_until == ""


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), "yesterday", 5])
def test_what_is_no_time(value: Any) -> None:
    with pytest.raises(api.ConfigError, match="opt_start_time"):
        api.consumer_config(opt_start_time=value)


def test_structs_pass_through() -> None:
    source = api.StreamSource(name="inbox", opt_start_seq=2)
    config = api.stream_config("s", sources=[source, {"name": "b"}], placement=api.Placement(cluster="c"))
    assert config.sources == (source, api.StreamSource(name="b"))
    assert config.placement == api.Placement(cluster="c")


def test_a_given_configuration_is_kept_or_changed() -> None:
    stream = api.StreamConfig(name="s", max_age=5)
    assert api.stream_config(stream) is stream
    assert api.stream_config(stream, max_msgs=3) == api.StreamConfig(name="s", max_age=5, max_msgs=3)
    consumer = api.ConsumerConfig(name="c")
    assert api.consumer_config(consumer) is consumer
    assert api.consumer_config(consumer, ack_wait=1).ack_wait == 1
    assert api.consumer_config() == api.ConsumerConfig()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_mesgs": 1}, "stream 's': there is no field 'max_mesgs'; did you mean 'max_msgs'?"),
        ({"sources": [{"nam": "a"}]}, "there is no field 'sources.nam'; did you mean 'name'?"),
        ({"placement": {"zzz": 1}}, "'placement.zzz'; known fields are cluster, preferred, tags"),
        ({"max_msgs": "many"}, "stream 's': max_msgs: expected `int`, got `str`"),
        ({"sources": [{"name": 3}]}, "sources[0].name: expected `str`, got `int`"),
        ({"sources": [{}]}, "sources[0]: object missing required field `name`"),
        ({"retention": "for ever"}, "retention: invalid enum value 'for ever'"),
        ({"subjects": "a.b"}, "subjects: expected `array`, got `str`"),
        ({"metadata": {"a": 1}}, "metadata: expected `str`, got `int`"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(api.ConfigError) as caught:
        api.stream_config("s", **fields)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\x00", None, 3])
def test_names_of_streams(name: Any) -> None:
    with pytest.raises(api.ConfigError, match="cannot name a stream"):
        api.stream_config(name)


def test_names_of_consumers() -> None:
    with pytest.raises(api.ConfigError, match=r"'a\.b' cannot name a consumer"):
        api.consumer_config(durable_name="a.b")
