"""How a server's own limits affect jobs."""

import pytest

from pelton import Jet
from tests.queue.helpers import drain, ended

pytestmark = pytest.mark.parametrize("path", ["nats"], indirect=True)


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
