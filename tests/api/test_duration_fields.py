"""Durations in structs: seconds for users, nanoseconds on the wire, and no ambiguity."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pelton
from pelton import api
from pelton.api import ConsumerConfig, Duration, dec_hook, enc_hook
from pelton.api.build import DURATIONS
from pelton.api.times import Durations, HasDurations

YEAR = timedelta(days=366)


def test_a_config_takes_seconds_and_timedeltas() -> None:
    config = ConsumerConfig(
        ack_wait=30, inactive_threshold=timedelta(minutes=5), backoff=[0.5, 2, timedelta(seconds=3)]
    )
    assert config.ack_wait == 30
    assert config.ack_wait == timedelta(seconds=30)
    assert config.ack_wait == Duration(30)
    assert config.ack_wait != 30 * 10**9
    assert config.inactive_threshold.seconds == 300
    assert [each.seconds for each in config.backoff] == [0.5, 2, 3]
    assert_type(config.ack_wait, Duration)
    assert_type(config.backoff, tuple[Duration, ...])
    again = msgspec.structs.replace(config, ack_wait=45, max_expires=config.backoff[1])
    assert (again.ack_wait.ns, again.max_expires.to_timedelta()) == (45 * 10**9, timedelta(seconds=2))
    stream = api.StreamConfig(name="s", max_age=YEAR, consumer_limits=api.ConsumerLimits(inactive_threshold=1))
    assert (stream.max_age.seconds, stream.consumer_limits.inactive_threshold.seconds) == (366 * 86_400, 1)


def test_the_wire_counts_nanoseconds() -> None:
    config = ConsumerConfig(name="c", ack_wait=1.5, backoff=[1])
    data = msgspec.json.encode(config, enc_hook=enc_hook)
    assert b'"ack_wait":1500000000' in data
    assert b'"backoff":[1000000000]' in data
    assert b"idle_heartbeat" not in data
    assert msgspec.json.decode(data, type=ConsumerConfig, dec_hook=dec_hook) == config
    tiny = msgspec.json.decode(b'{"ack_wait": 1, "backoff": [-1]}', type=ConsumerConfig, dec_hook=dec_hook)
    assert (tiny.ack_wait.ns, tiny.backoff[0].ns) == (1, -1)
    assert b"ack_wait" not in msgspec.json.encode(ConsumerConfig(ack_wait=0.0), enc_hook=enc_hook)
    for wrong in (b'"1"', b"1.5", b"true"):
        with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
            msgspec.json.decode(b'{"ack_wait": %b}' % wrong, type=ConsumerConfig, dec_hook=dec_hook)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (30e-9, "less than a millisecond: give seconds, such as 30"),
        (timedelta(microseconds=999), "less than a millisecond"),
        (30 * 10**9, "less than 292 years, in seconds"),
        (-1, "0 or more"),
        (float("nan"), "give seconds"),
        (True, "give seconds"),
        ("30s", "give seconds"),
        (None, "give seconds"),
    ],
)
async def test_what_nobody_means_is_refused_where_it_is_given(value: Any, reason: str) -> None:
    with pytest.raises(pelton.ConfigError, match=f"^ConsumerConfig: ack_wait is .*{reason}"):
        ConsumerConfig(ack_wait=value)
    with pytest.raises(pelton.ConfigError, match=f"^ConsumerConfig: backoff is .*{reason}"):
        ConsumerConfig(backoff=[1, value])
    with pytest.raises(pelton.ConfigError, match=f"^StreamConfig: max_age is .*{reason}"):
        api.StreamConfig(max_age=value)
    with pytest.raises(pelton.ConfigError, match=f"^duration is .*{reason}"):
        Duration(value)
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        with pytest.raises(pelton.ConfigError, match=f"^consumer 'c': ack_wait is .*{reason}"):
            await stream.create_consumer(durable_name="c", ack_wait=value)
        with pytest.raises(pelton.ConfigError, match=f"^stream 't': inactive_threshold is .*{reason}"):
            await jet.create_stream("t", consumer_limits={"inactive_threshold": value})


def test_several_are_a_list() -> None:
    with pytest.raises(pelton.ConfigError, match="backoff is 5: give a list of durations"):
        ConsumerConfig(backoff=5)  # type: ignore[arg-type]  # what is refused


async def test_what_is_reported_is_what_was_asked_for() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream(api.StreamConfig(name="s", subjects=("s",), max_age=3600))
        assert (await stream.info()).config.max_age == timedelta(hours=1)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="c", ack_wait=20))
        assert (await consumer.info()).config.ack_wait == 20
        assert (await consumer.info()).pause_remaining == 0
        later = datetime.now(UTC) + timedelta(hours=1)
        assert timedelta(minutes=59) < (await consumer.pause(later)).pause_remaining <= timedelta(hours=1)


def test_a_duration_is_no_number() -> None:
    half: Any = Duration(30)
    comparisons: list[Callable[[], Any]] = [lambda: half > 5, lambda: half <= 5.0, lambda: half > 5, lambda: half < "x"]
    for compare in comparisons:
        with pytest.raises(TypeError, match=r"compare its \.seconds"):
            compare()
    sums: list[Callable[[], Any]] = [lambda: 1 + half, lambda: half * 2, lambda: half / 1e9, lambda: int(half)]
    for add in sums:
        with pytest.raises(TypeError):
            add()
    with pytest.raises(AttributeError, match="cannot be changed"):
        half.ns = 3
    assert half != "30"


def test_durations_are_ordered_and_told_apart() -> None:
    one, two = Duration(1), Duration(2)
    assert one < two
    assert two > timedelta(seconds=1)
    assert timedelta(seconds=1) < two
    assert one <= Duration(1) >= timedelta(seconds=1)
    assert (bool(Duration()), bool(one), min(two, one)) == (False, True, one)
    assert {Duration(1): "a"}[one] == {one: "a"}[Duration.of_ns(10**9)] == "a"
    assert [copy.deepcopy(one), pickle.loads(pickle.dumps(one))] == [one, one]
    assert pickle.loads(pickle.dumps(Duration())) is Duration.of_ns(0)


@given(st.integers(0, (1 << 63) - 1))
def test_a_duration_tells_itself(ns: int) -> None:
    one = Duration.of_ns(ns)
    assert eval(repr(one)) == one
    assert one == Duration(one)
    assert api.times.parse_duration(str(one)) == ns


def _hints(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return list(get_type_hints(kind).items())


def structs(kind: type[msgspec.Struct] = msgspec.Struct) -> Iterator[type[msgspec.Struct]]:
    for below in kind.__subclasses__():
        yield below
        yield from structs(below)


def test_every_struct_with_durations_takes_what_users_give() -> None:
    for kind in structs():
        if kind.__module__.startswith("pelton.api"):
            hints = get_type_hints(kind).values()
            assert issubclass(kind, HasDurations) == any(hint in (Duration, Durations) for hint in hints), kind


def test_keyword_arguments_know_every_duration_of_a_configuration() -> None:
    hints = [hint for kind in (api.StreamConfig, ConsumerConfig, api.ConsumerLimits) for hint in _hints(kind)]
    assert {name for name, hint in hints if hint in (Duration, Durations)} == DURATIONS
