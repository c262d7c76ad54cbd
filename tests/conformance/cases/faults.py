"""A message with several errors is refused for the first of them: the order in which they are checked."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from pelton.connect import Jet
from tests.conformance.cases.table import case, refused

_TOLD: Final = {
    "Nats-Required-Api-Level": ("99", 10185),
    "Nats-Expected-Last-Msg-Id": ("x", 10177),
    "Nats-Incr": ("x", 10171),
    "Nats-Expected-Stream": ("T", 10060),
    "Nats-TTL": ("1h", 10166),
    "Nats-Msg-Id": ("known", 10201),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("s.b", 10193),
    "Nats-Expected-Last-Sequence": ("7", 10071),
    "Nats-Schedule": ("x", 10188),
    "Nats-Stream-Source": ("O 1 > > o", 10227),
    "Nats-Rollup": ("all", 10111),
}
_SEQUENCES: Final = ("Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Expected-Last-Sequence")
_ALONE: Final = ("Nats-Incr", "Nats-Expected-Stream", "Nats-TTL", *_SEQUENCES)
_ALONE_THEN: Final = ("Nats-Schedule", "Nats-Stream-Source", "Nats-Expected-Last-Msg-Id", "Nats-Rollup")
_LAST_ID_ALONE: Final = 10070
_IN_BATCHES: Final = (
    "Nats-Required-Api-Level",
    "Nats-Expected-Last-Msg-Id",
    "Nats-Incr",
    "Nats-Expected-Stream",
    "Nats-TTL",
    "Nats-Msg-Id",
    "Nats-Stream-Source",
)
_UNCOUNTED: Final = 10169
_IN_BATCHES_THEN: Final = ("Nats-Expected-Last-Sequence", "Nats-Schedule", "Nats-Rollup")


def _both(first: str, second: str) -> dict[str, str]:
    return {name: _TOLD[name][0] for name in (first, second)}


@case
async def of_a_message_alone(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"])
    await jet.publish("s.a")
    for first, second in combinations(_ALONE + _ALONE_THEN, 2):
        code = _LAST_ID_ALONE if first == "Nats-Expected-Last-Msg-Id" else _TOLD[first][1]
        await refused(code, jet.publish("s.a", headers=_both(first, second)))


@case
async def of_a_message_of_a_batch(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"], allow_atomic=True)
    await jet.publish("s.a", msg_id="known")
    for first, second in combinations(_IN_BATCHES + _IN_BATCHES_THEN, 2):
        await refused(_TOLD[first][1], jet.publish_atomic([("s.a", b"", _both(first, second))]))


@case
async def an_increment_is_missed_in_a_batch_before_sequences_are_compared(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"], allow_atomic=True, allow_msg_counter=True)
    await jet.publish("s.a", headers={"Nats-Incr": "1"}, msg_id="known")
    for name in _IN_BATCHES:
        await refused(_TOLD[name][1], jet.publish_atomic([("s.a", b"", {name: _TOLD[name][0]})]))
    for name in _IN_BATCHES_THEN:
        await refused(_UNCOUNTED, jet.publish_atomic([("s.a", b"", {name: _TOLD[name][0]})]))
        alone = jet.publish("s.a", headers={name: _TOLD[name][0]})
        await refused(_TOLD[name][1], alone)


@case
async def an_unknown_time_zone_is_no_fault_of_its_own_where_nothing_is_scheduled(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], allow_atomic=True)
    zone = {"Nats-Schedule-Time-Zone": "Middle/Earth"}
    await refused(10188, jet.publish("s", headers=zone))
    await refused(10188, jet.publish_atomic([("s", b"", zone)]))


@case
async def every_message_is_measured_before_any_of_its_batch_is_read(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], allow_atomic=True, max_msg_size=300)
    wrong = {"Nats-Expected-Stream": "T"}
    await refused(10054, jet.publish_atomic([("s", b"", wrong), ("s", b"x" * 400), ("s", b"")]))
    level = {"Nats-Required-Api-Level": "99"}
    await refused(10185, jet.publish_atomic([("s", b"", wrong), ("s", b"", level), ("s", b"")]))
