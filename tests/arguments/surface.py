"""The public methods of the handles, each with valid arguments: the tests replace one at a time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pelton
from pelton.api import ConsumerConfig, StreamConfig
from pelton.buckets import BucketSettings, ObjectSettings
from pelton.jet import PublishOptions
from pelton.locks import ElectionOptions
from pelton.sync.derive import public_names

PULL = ("timeout", "max_bytes", "no_wait", "group", "priority", "min_pending", "min_ack_pending", "failover")
ORDERED = ("deliver_policy", "opt_start_seq", "opt_start_time", "filter_subject", "filter_subjects", "headers_only")
# Not called: they close what the others need, or belong to the language.
LEFT_OUT = {
    "Jet": {"close", "rekey"},
    "Transaction": {"enqueue", "enqueue_many"},
}


@dataclass
class World:
    """An open store with one of each handle."""

    jet: pelton.Jet
    folder: Path
    handles: dict[str, Any] = field(default_factory=dict)
    # Values of parameters by name, and by method if the name is not enough.
    right: dict[str, Any] = field(default_factory=dict)


async def world(jet: pelton.Jet, folder: Path) -> World:
    """Fill a store."""
    stream = await jet.create_stream(
        "s",
        subjects=["s.>"],
        allow_direct=True,
        allow_msg_ttl=True,
        allow_atomic=True,
        allow_msg_schedules=True,
        allow_rollup_hdrs=True,
    )
    await jet.create_stream("n", subjects=["n"], allow_msg_counter=True)
    await jet.publish_batch([("s.a", b"1"), ("s.b", b"2"), ("s.c", b"3")])
    consumer = await stream.create_consumer(durable_name="c", ack_wait=30, filter_subject="s.>")
    (message,) = await consumer.fetch(1)
    bucket = await jet.create_bucket("b", limit_marker_ttl=60)
    await bucket.put("k", b"v")
    objects = await jet.create_objects("o")
    info = await objects.put("x", b"content")
    lock = jet.lock("l")
    handles = {
        "Jet": jet,
        "Stream": stream,
        "Consumer": consumer,
        "Message": message,
        "Bucket": bucket,
        "ObjectStore": objects,
        "Lock": lock,
        "Semaphore": jet.semaphore("m", slots=2),
        "LockLease": await jet.lock("h").acquire(),
        "Election": jet.elect("e"),
        "Subscription": await jet.subscribe("heard"),
    }
    return World(jet, folder, handles, _right(jet, folder, info))


def _right(jet: pelton.Jet, folder: Path, info: Any) -> dict[str, Any]:
    return {
        "subject": "s.a",
        "Jet.add.subject": "n",
        "Stream.counter.subject": "s.zz",
        "data": b"d",
        "name": "new",
        "Jet.stream.name": "s",
        "Jet.update_stream.name": "s",
        "Jet.bucket.name": "b",
        "Jet.update_bucket.name": "b",
        "Jet.objects.name": "o",
        "Jet.queue.name": "q",
        "Stream.consumer.name": "c",
        "election": "e",
        "to": jet,
        "stream": "s",
        "messages": [("s.a", b"1")],
        "Consumer.ack.messages": [],
        "path": folder / "copy",
        "target": "s.t",
        "slots": 2,
        "seq": 1,
        "callback": print,
        "group": "g",
        "until": "2026-01-01T00:00:00Z",
        "subjects": "s.a",
        "key": "k",
        "value": b"v",
        "revision": 1,
        "content": b"c",
        "ObjectStore.add_link.target": info,
        "ObjectStore.add_bucket_link.target": "o",
        "ObjectStore.get_file.target": folder / "got",
        "bucket": None,
        "statement": "SELECT 1",
        "config": None,
    }


@dataclass(frozen=True)
class Case:
    """One parameter of one method."""

    kind: str
    method: str
    parameter: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.method}({self.parameter})"


def cases() -> list[Case]:
    """Return every parameter of every public method of the handles."""
    found = []
    for kind in (*_KINDS, "Transaction"):
        for method in public_names(getattr(pelton, kind)):
            member = inspect.getattr_static(getattr(pelton, kind), method)
            if inspect.isfunction(member) and method not in LEFT_OUT.get(kind, set()) and not method.startswith("__"):
                found += [Case(kind, method, name) for name in _parameters(kind, method, member)]
    return found


_KINDS = (
    "Jet",
    "Stream",
    "Consumer",
    "Message",
    "Bucket",
    "ObjectStore",
    "Lock",
    "Semaphore",
    "LockLease",
    "Election",
    "Subscription",
)
_KEYWORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Jet", "create_stream"): StreamConfig.__struct_fields__[1:],
    ("Jet", "update_stream"): StreamConfig.__struct_fields__[1:],
    ("Jet", "create_bucket"): tuple(BucketSettings.__annotations__),
    ("Jet", "update_bucket"): tuple(BucketSettings.__annotations__),
    ("Jet", "create_objects"): tuple(ObjectSettings.__annotations__),
    ("Jet", "elect"): tuple(ElectionOptions.__annotations__),
    ("Stream", "create_consumer"): ConsumerConfig.__struct_fields__,
    ("Stream", "ordered"): ORDERED,
    ("Consumer", "consume"): PULL[1:],
    ("Consumer", "messages"): PULL[2:],
    ("Consumer", "next"): PULL[1:],
    ("Transaction", "publish"): tuple(PublishOptions.__annotations__),
}


def _parameters(kind: str, method: str, member: Callable[..., Any]) -> list[str]:
    names = []
    for parameter in list(inspect.signature(member).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            names += _KEYWORDS[kind, method]
        else:
            names.append(parameter.name)
    return names


async def call(world: World, case: Case, value: object) -> None:
    """Call the method with one argument that is ``value``; of an iteration, take the first."""
    if case.kind == "Transaction":
        async with world.jet.transaction() as tx:
            await _called(world, case, tx, value)
    else:
        await _called(world, case, world.handles[case.kind], value)


async def _called(world: World, case: Case, handle: Any, value: object) -> None:
    method = getattr(handle, case.method)
    positional: list[object] = []
    named: dict[str, object] = {}
    for parameter in inspect.signature(method).parameters.values():
        given = value if parameter.name == case.parameter else _right_for(world, case, parameter.name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [value] if parameter.name == case.parameter else []
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.name != case.parameter:
            if parameter.default is parameter.empty:
                named[parameter.name] = given
            elif parameter.name == "timeout":
                named[parameter.name] = 0.01
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        elif parameter.kind is not parameter.VAR_KEYWORD and (
            parameter.default is parameter.empty or parameter.name == case.parameter
        ):
            positional.append(given)
    if case.parameter not in inspect.signature(method).parameters:
        named[case.parameter] = value
    result = method(*positional, **named)
    if isinstance(result, Awaitable):
        await result
    elif hasattr(result, "__anext__"):
        try:
            await anext(result, None)
        finally:
            await result.aclose()


def _right_for(world: World, case: Case, parameter: str) -> object:
    exact = f"{case.kind}.{case.method}.{parameter}"
    if case.kind in ("Jet", "Stream") and case.method.startswith("delete") and parameter == "name":
        return "gone"
    if case.kind == "Transaction" and parameter == "bucket":
        return world.handles["Bucket"]
    if case.kind == "Transaction" and parameter == "messages":
        return [("s.a", b"1")]
    if case.kind == "ObjectStore" and parameter == "name":
        return "x" if not case.method.startswith("add") else "link"
    return world.right.get(exact, world.right.get(parameter))
