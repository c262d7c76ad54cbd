"""How a server's own limits affect jobs."""

import pytest

from pelton import Jet, JobRules
from pelton.queue.job import JobCall
from pelton.queue.model.options import JobOptions
from tests.queue.helpers import drain, ended

pytestmark = pytest.mark.parametrize("path", ["nats"], indirect=True)


async def test_a_key_with_a_long_backlog_does_not_starve_another(jet: Jet) -> None:
    queue = await jet.queue("keyed", exclusive=True)
    await queue.enqueue_many([JobCall("job", b"{}", JobOptions(key=key)) for key in (*["long"] * 100, "short")])
    started: list[str] = []
    async with queue.claims(JobRules()) as claims:
        while "short" not in started:
            for claimed in await claims.take(1):
                started.append(claimed.key)
                claimed.complete()
                await claims.settle([claimed])
    # One slot, two keys: the one that has waited is drawn half of the time.
    assert len(started) < 40


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_job_too_large_for_a_dead_letter_fails_without_one(jet: Jet, exclusive: bool) -> None:
    queue = await jet.queue("large", exclusive=exclusive)

    @queue.job(max_attempts=1)
    async def job(text: str) -> None:
        if text:
            raise ValueError

    handles = [await job.enqueue("x" * (1024 * 1024 - 200), key=key) for key in ("k", "")]
    after = await job.enqueue("", key="k")
    await drain(queue)
    assert [(await handle.outcome()).state for handle in handles] == ["failed", "failed"]
    assert [letter async for letter in queue.dead_letters()] == []
    assert (await after.outcome()).state == "completed"
    assert len(await ended(queue)) == 3
