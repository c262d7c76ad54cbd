"""Jobs enqueued together get the answers that they would get one by one, whatever their options."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from pelton import DuplicateJobError, Jet, JobCounts, MessageNotFoundError
from pelton.queue import Queue
from pelton.queue.job import JobCall, JobHandle
from pelton.queue.model.states import Envelope, decode_envelope
from tests.queue.conftest import ON_BOTH, OpenQueue

OPTIONS: list[dict[str, Any]] = [
    {},
    {"key": "a"},
    {"delay": 3600},
    {"delay": 3600, "key": "a.b c"},
    {"unique": "arguments"},
    {"unique": "arguments", "key": "b"},
    {"unique": "arguments", "delay": 3600},
    {"unique": "text", "ttl": 60},
    {"unique": "key", "key": "a"},
    {"unique": "soon", "delay": 3600, "replace": True},
    {"unique": "begun", "unique_until": "started"},
    {"unique": "hour", "unique_for": 3600, "priority": 2},
    {"id": "mine"},
    {"idempotency_key": "once"},
    {"idempotency_key": "later", "delay": 3600},
    {"priority": 3},
]


def some_calls(queue: Queue, seed: int, number: int) -> list[JobCall]:
    @queue.job(name="job")
    async def job(number: int) -> None: ...

    rng = random.Random(seed)
    return [job.options(**rng.choice(OPTIONS)).bind(rng.randrange(4)) for _ in range(number)]


def which(handles: Sequence[JobHandle[Any]]) -> list[tuple[int, bool]]:
    """Return for each handle the first one of the same job, and whether it is a duplicate."""
    ids = [handle.id for handle in handles]
    return [(ids.index(handle.id), handle.duplicate) for handle in handles]


async def stored(queue: Queue) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the jobs that wait, and their messages."""
    infos = [info async for info in queue.jobs()]
    stream = await queue.jet.stream(queue.names.jobs)
    envelopes = list[Envelope]()
    for seq in range(1, (await stream.info()).state.last_seq + 1):
        with suppress(MessageNotFoundError):
            envelopes.append(decode_envelope((await stream.get_message(seq)).data))
    return (
        sorted((info.key, info.state, info.priority) for info in infos),
        sorted((bytes(one.args), one.key, one.priority, bool(one.id), bool(one.due)) for one in envelopes),
    )


@ON_BOTH
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("seed", range(2))
async def test_the_answers_are_those_of_single_jobs(jet: Jet, seed: int, exclusive: bool) -> None:
    together = await jet.queue("together", exclusive=exclusive)
    single = await jet.queue("single", exclusive=exclusive)
    calls = some_calls(together, seed, 60)
    if exclusive:
        # A key has no priorities there.
        calls = [call for call in calls if not (call.options.key and call.options.priority)]
    handles = [*await together.enqueue_many(calls[:40]), *await together.enqueue_many(calls[40:])]
    alone = list[JobHandle[Any]]()
    for call in some_calls(single, seed, 60):
        alone += await single.enqueue_many([call])
    assert which(handles) == which(alone)
    assert await stored(together) == await stored(single)


@pytest.mark.parametrize("seed", range(2))
async def test_in_a_transaction_they_are_the_same(jet: Jet, seed: int) -> None:
    together, single = await jet.queue("together"), await jet.queue("single")
    async with jet.transaction() as tx:
        handles = await tx.enqueue_many(some_calls(together, seed, 50))
    alone = list[JobHandle[Any]]()
    for call in some_calls(single, seed, 50):
        async with jet.transaction() as tx:
            alone += await tx.enqueue_many([call])
    assert which(handles) == which(alone)
    assert await stored(together) == await stored(single)


@ON_BOTH
async def test_a_refused_one_does_not_keep_the_others_from_being_stored(jet: Jet, queue: Queue) -> None:
    @queue.job
    async def job(number: int) -> None: ...

    once = job.options(unique="arguments", on_duplicate="raise")
    await once.enqueue(7)
    with pytest.raises(DuplicateJobError):
        await queue.enqueue_many([once.bind(number) for number in range(600)])
    assert await queue.counts() == JobCounts(pending=600)


async def test_in_a_transaction_a_refused_one_undoes_all_of_its_call(jet: Jet, queue: Queue) -> None:
    @queue.job
    async def job(number: int) -> None: ...

    once = job.options(unique="arguments", on_duplicate="raise")
    async with jet.transaction() as tx:
        await tx.enqueue_many([once.bind(7)])
        with pytest.raises(DuplicateJobError):
            await tx.enqueue_many([once.bind(number) for number in range(20)])
    assert await queue.counts() == JobCounts(pending=1)


async def test_the_duplicates_of_another_process_are_seen(queue: Queue, another: OpenQueue) -> None:
    @queue.job
    async def job(number: int) -> None: ...

    twin = await another("garage")
    once = job.options(unique="arguments")
    first = await queue.enqueue_many([once.bind(number) for number in range(100)])
    found = await twin.options(unique="arguments").enqueue("job", number=7)
    assert (found.id, found.duplicate) == (first[7].id, True)
