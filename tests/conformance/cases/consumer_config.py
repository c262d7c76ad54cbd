"""Valid consumer configurations, and the error for each contradiction."""

from __future__ import annotations

from typing import Any

from pelton.api import ConsumerConfig, ConsumerCreate, Duration
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.table import case, only, refused


async def _stream(jet: Jet) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"])


async def _pedantic(jet: Jet, **fields: object) -> None:
    config = ConsumerConfig(name="p", **fields)  # type: ignore[arg-type]  # fields of a ConsumerConfig
    await jet.backend.call(ConsumerCreate(stream_name="S", config=config, pedantic=True))


@case
async def pulling_takes_no_field_of_pushing(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10086, stream.create_consumer(rate_limit_bps=100))
    await refused(10088, stream.create_consumer(idle_heartbeat=1))
    await refused(10089, stream.create_consumer(flow_control=True))
    await refused(10090, stream.create_consumer(direct=True))


@case
async def limits_of_a_pull(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10115, stream.create_consumer(max_expires=Duration.of_ns(1000)))
    config = (await stream.create_consumer(max_batch=10, max_expires=1, max_bytes=100)).config
    assert (config.max_batch, config.max_expires, config.max_bytes) == (10, Duration(1), 100)
    config = (await stream.create_consumer(max_batch=-1, max_bytes=-1)).config
    assert (config.max_batch, config.max_bytes) == (0, 0)


@case
async def where_to_push(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10079, stream.create_consumer(deliver_subject="d.*"))
    await refused(10112, stream.create_consumer(deliver_subject="d..x"))
    await refused(10081, stream.create_consumer(deliver_subject="s.x"))


@case
async def pushing_takes_no_field_of_pulling(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10080, stream.create_consumer(deliver_subject="d", max_waiting=5))
    await refused(10082, stream.create_consumer(deliver_subject="d", ack_policy="none", max_ack_pending=5))
    await refused(10178, stream.create_consumer(deliver_subject="d", priority_policy="overflow", priority_groups=["a"]))
    await refused(10091, stream.create_consumer(deliver_subject="d", direct=True, durable_name="x"))


@case
async def flow_control_needs_heartbeats(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10083, stream.create_consumer(deliver_subject="d", idle_heartbeat=0.001))
    pushing: dict[str, Any] = {"deliver_subject": "d", "flow_control": True}
    await refused(10108, stream.create_consumer(**pushing))
    # Of other errors, those that are checked after it.
    await refused(10108, stream.create_consumer(**pushing, priority_groups=("g",)))
    others: dict[int, dict[str, Any]] = {
        10091: {"direct": True, "durable_name": "x"},
        10094: {"deliver_policy": "by_start_sequence"},
        10095: {"sample_freq": "x"},
        10138: {"filter_subjects": ("s.>", "s.a")},
    }
    for err_code, fields in others.items():
        await refused(err_code, stream.create_consumer(**pushing, **fields))


@case
async def acks_by_flow_control(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10218, stream.create_consumer(ack_policy="flow_control"))
    await refused(10222, stream.create_consumer(ack_policy="flow_control", deliver_subject="d", max_deliver=3))
    await refused(10221, stream.create_consumer(ack_policy="flow_control", deliver_subject="d", ack_wait=1))
    await refused(10220, stream.create_consumer(ack_policy="flow_control", deliver_subject="d", max_ack_pending=-1))
    await refused(10219, _pedantic(jet, ack_policy="flow_control", deliver_subject="d"))


@case
async def priority_groups_need_a_policy(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10196, stream.create_consumer(priority_groups=["a"]))
    await refused(10196, stream.create_consumer(priority_policy="none", priority_groups=["a"]))
    await refused(10197, stream.create_consumer(priority_timeout=1))


@only("engine", "ADR-42 asks for it; nats-server 2.15 accepts such a consumer and serves the first group alone")
async def one_group(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10094, stream.create_consumer(priority_policy="overflow", priority_groups=["a", "b"]))


@case
async def groups_with_any_acks(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish_batch([("s.1", b"")] * 4)
    for acks in ("none", "all"):
        for policy in ("overflow", "prioritized", "pinned_client"):
            consumer = await stream.create_consumer(priority_policy=policy, priority_groups=["a"], ack_policy=acks)
            assert len(await consumer.fetch(3, group="a", timeout=10)) == 3
            info = await consumer.info()
            assert (info.num_pending, info.num_ack_pending) == (1, 0 if acks == "none" else 3)


@case
async def metadata_has_a_limit(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10135, stream.create_consumer(metadata={"a": "x" * (128 << 10)}))


@case
async def the_last_per_subject_needs_a_filter(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10094, stream.create_consumer(deliver_policy="last_per_subject"))
    await refused(
        10094, stream.create_consumer(deliver_policy="last_per_subject", filter_subject="s.a", opt_start_seq=4)
    )


@case
async def being_pedantic_refuses_what_would_be_corrected(jet: Jet) -> None:
    await _stream(jet)
    await refused(10157, _pedantic(jet, max_deliver=-5))
    await refused(10157, _pedantic(jet, max_waiting=-5))
    await refused(10157, _pedantic(jet, max_ack_pending=-5))
    await refused(10157, _pedantic(jet, max_batch=-1))
    await refused(10157, _pedantic(jet, max_expires=Duration.of_ns(-1)))
    await refused(10157, _pedantic(jet, max_bytes=-1))
    await refused(10157, _pedantic(jet, inactive_threshold=Duration.of_ns(-1)))
    await refused(10157, _pedantic(jet, backoff=(1,), ack_wait=2))


@case
async def negative_waits_are_refused(jet: Jet) -> None:
    await _stream(jet)
    for fields, code in (({"ack_wait": Duration.of_ns(-1)}, 10183), ({"backoff": (Duration.of_ns(-1),)}, 10184)):
        config = ConsumerConfig(name="c", **fields)
        await refused(code, jet.backend.call(ConsumerCreate(stream_name="S", config=config)))


@case
async def replicas_are_no_negative_number(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10133, stream.create_consumer(num_replicas=-1))


@case
async def priority_groups_have_names(jet: Jet) -> None:
    stream = await _stream(jet)
    await refused(10159, stream.create_consumer(priority_policy="overflow"))
    await refused(10161, stream.create_consumer(priority_policy="overflow", priority_groups=[""]))
    for name in ("a b", "a" * 17, "a+", "a)"):
        await refused(10162, stream.create_consumer(priority_policy="overflow", priority_groups=[name]))
    config = (await stream.create_consumer(priority_policy="overflow", priority_groups=["aZ09/_=-"])).config
    assert config.priority_groups == ("aZ09/_=-",)


@case
async def a_pin_lasts_two_minutes(jet: Jet) -> None:
    stream = await _stream(jet)
    pinned = await stream.create_consumer(priority_policy="pinned_client", priority_groups=["a"])
    assert pinned.config.priority_timeout == 120


@only("engine", "ADR-42 asks for it; nats-server 2.15 changes the policy under its clients")
async def a_priority_policy_stays(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="c", priority_policy="overflow", priority_groups=["a"])
    for fields in ({}, {"priority_policy": "prioritized", "priority_groups": ["a"]}):
        await refused(10012, stream.create_consumer(durable_name="c", **fields))


@case
async def a_pin_s_timeout_can_be_changed(jet: Jet) -> None:
    stream = await _stream(jet)
    fields = {"durable_name": "c", "priority_policy": "pinned_client", "priority_groups": ["a"]}
    await stream.create_consumer(**fields)
    changed = await stream.create_consumer(**fields, priority_timeout=5)
    assert changed.config.priority_timeout == 5


@case
async def what_an_update_may_change(jet: Jet) -> None:
    stream = await _stream(jet)
    await stream.create_consumer(durable_name="c")
    changes = {
        "description": "new",
        "headers_only": True,
        "max_batch": 7,
        "max_expires": 3,
        "max_bytes": 900,
        "metadata": {"a": "b"},
        "inactive_threshold": 9,
    }
    config = (await stream.create_consumer(durable_name="c", **changes)).config
    assert (config.description, config.headers_only) == ("new", True)
    assert (config.max_batch, config.max_expires, config.max_bytes) == (7, Duration(3), 900)
    assert (config.metadata["a"], config.inactive_threshold) == ("b", Duration(9))
    await refused(10012, stream.create_consumer(durable_name="c", replay_policy="original"))
