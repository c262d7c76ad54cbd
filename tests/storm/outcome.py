"""The effects of operations on a store: is each complete, or absent, without side effects?"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pelton
from tests.crash.roles import name_of
from tests.storm.operations import Bench, Operation


async def present(bench: Bench, marks: set[str]) -> set[str]:
    """Return the marks that are present. Raises AssertionError if a message or an object is torn."""
    jet, found = bench.jet, set[str]()
    stored = {name: await _stored(await jet.stream(name)) for name in ("log", "work", "swept", "JOBS_jobs")}
    found |= {f"msg {_name_of(data, bench.size)}" for data in stored["log"].values()}
    found |= {f"gone {name} {seq}" for name in stored for seq in _asked(marks, f"gone {name}") - stored[name].keys()}
    async with jet.transaction(timeout=20) as tx:
        found |= {f"row {name}" for (name,) in await tx.sql("SELECT name FROM rows")}
    keys = {key async for key in bench.bucket.keys(">")}
    found |= {f"key {key}" for key in keys}
    found |= {mark for mark in marks if mark.startswith("nokey ") and mark[6:] not in keys}
    objects = {info.name async for info in bench.store.list()}
    for name in objects:
        assert _name_of(await bench.store.get(name), bench.size) == name, f"object {name} is torn"
    found |= {f"object {name}" for name in objects}
    found |= {mark for mark in marks if mark.startswith("noobject ") and mark[9:] not in objects}
    found |= {f"job {outcome.value().partition('/')[0]}" async for outcome in bench.queue.history()}
    found |= {f"stream {name}" for name in await jet.stream_names()}
    found |= {f"consumer {name}" for name in await bench.log.consumer_names()}
    return found


def _asked(marks: set[str], of: str) -> set[int]:
    return {int(mark.rpartition(" ")[2]) for mark in marks if mark.rpartition(" ")[0] == of}


def _name_of(data: bytes, size: int) -> str:
    if not size:
        return name_of(data)
    name, _, rest = data.partition(b"|")
    assert rest == bytes(size), f"the data of {name!r} is torn"
    return name.decode()


async def _stored(stream: pelton.Stream) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    seq = 0
    with suppress(pelton.MessageNotFoundError):
        while True:
            stored = await stream.get_next_message(">", seq + 1)
            seq = stored.seq
            found[seq] = stored.data
    return found


class Attempt(NamedTuple):
    """An operation that has ended, and whether it reported success."""

    operation: Operation
    acknowledged: bool


async def contradictions(bench: Bench, attempts: list[Attempt]) -> list[str]:
    """Return operations that are partly in effect, or acknowledged and absent."""
    await bench.queue.work(until_empty=True, handle_signals=False)
    there = await present(bench, {mark for attempt in attempts for mark in attempt.operation.marks})
    problems = []
    for (kind, marks, _), acknowledged in attempts:
        found = marks & there
        if found not in (marks, frozenset()):
            problems.append(f"{kind}: of {sorted(marks)} there is only {sorted(found)}")
        elif acknowledged and not found and marks:
            problems.append(f"{kind}: {sorted(marks)} was acknowledged and is not there")
    return problems


async def undelivered(bench: Bench) -> list[str]:
    """Return messages lost by cancelled pulls; those given back are redelivered, though their ack wait is an hour."""
    while found := await bench.worker.fetch(500, no_wait=True):
        bench.take(found)
    problems, offset = [], 0
    while page := (
        await bench.jet.backend.call(pelton.api.ConsumerUnsettled(stream="work", name="worker", offset=offset))
    ).messages:
        offset += len(page)
        for one in page:
            if one.waits:
                problems.append(f"message {one.seq} waits to be delivered again and does not come")
            elif (one.seq, one.num_delivered) not in bench.handed:
                problems.append(f"message {one.seq} was delivered to nobody, for the {one.num_delivered}. time")
    return problems
