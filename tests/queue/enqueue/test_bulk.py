"""Jobs by the hundred thousand."""

from __future__ import annotations

import pytest

from pelton import Jet, JobCounts
from tests.queue.helpers import drain


@pytest.mark.parametrize("number", [2_000, pytest.param(100_000, id="long")])
@pytest.mark.parametrize("exclusive", [False, True])
async def test_many_jobs_at_once(jet: Jet, number: int, exclusive: bool) -> None:
    queue = await jet.queue("garage", exclusive=exclusive)
    total, last = 0, dict[str, int]()

    @queue.job
    async def add(n: int, car: str) -> None:
        nonlocal total
        assert not exclusive or last.get(car, -1) < n, "out of order"
        total, last[car] = total + n, n

    cars = [f"car{n % 1000}" for n in range(number)]
    handles = await add.enqueue_many([(n, cars[n]) for n in range(number)], keys=cars)
    assert len({handle.id for handle in handles}) == number
    assert await queue.counts() == JobCounts(pending=number)
    await drain(queue, within=300, concurrency=64)
    assert total == number * (number - 1) // 2
    assert await queue.counts() == JobCounts(completed=number)
