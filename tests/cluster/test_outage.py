"""A worker waits for its servers without a limit: only its user, or a store that failed for good, stops it."""

import asyncio
import logging
from pathlib import Path

import pytest

import pelton
from tests.cluster.network import network
from tests.kit.nats_server import nats_server


async def _logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    while not any(words in record.getMessage() for record in caplog.records):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("exclusive", "until_empty"), [(False, False), (True, False), (False, True)])
async def test_a_worker_waits_for_its_servers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exclusive: bool, until_empty: bool
) -> None:
    caplog.set_level(logging.INFO, "pelton")
    with nats_server(tmp_path) as server:
        async with network(server.port) as net, pelton.open(net.url, patience=0.3) as jet:
            queue = await jet.queue("garage", exclusive=exclusive)
            started, held, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

            @queue.job
            async def hold() -> None:
                started.set()
                await held.wait()

            @queue.job
            async def paint() -> str:
                done.set()
                return "painted"

            first = await hold.enqueue(key="car0")
            work = asyncio.create_task(queue.work(until_empty=until_empty, handle_signals=False, grace=1))
            try:
                await asyncio.wait_for(started.wait(), 60)
                net.cut()
                await asyncio.wait_for(_logged(caplog, "queue 'garage' waits for its store"), 60)
                # The cluster's own patience, 0.3 s here, is exhausted more than once.
                clock = asyncio.get_running_loop().time
                end = clock() + 0.8
                while clock() < end:
                    await asyncio.sleep(0)
                assert not work.done()
                net.mend()
                await asyncio.wait_for(_logged(caplog, "queue 'garage' resumes"), 60)
                # It is the server that it was.
                assert jet.backend.restarted_at < 0
                held.set()
                await paint.enqueue(key="car1")
                await asyncio.wait_for(done.wait(), 60)
            finally:
                held.set()
                queue.stop()
                await asyncio.wait_for(work, 60)
            assert (await first.outcome(timeout=60)).state == "completed"


async def test_a_job_that_a_killed_server_has_forgotten_has_one_holder(tmp_path: Path) -> None:
    """It confirms extensions of the delivery that it does not know any more, and delivers the job again."""
    with nats_server(tmp_path) as server:
        async with pelton.open(server.url) as jet:
            queue = await jet.queue("garage", lease=1.5)
            running, began, ended = 0, asyncio.Event(), asyncio.Event()

            @queue.job
            async def paint(car: int) -> None:
                nonlocal running
                if car:
                    began.set()
                    running += 1
                    try:
                        await ended.wait()
                    finally:
                        running -= 1

            work = asyncio.create_task(queue.work(handle_signals=False, grace=1))
            # What a consumer delivers first is stored at once, what follows only a little later.
            await (await paint.enqueue(0)).outcome(timeout=60)
            await paint.enqueue(0)
            job = await paint.enqueue(1)
            await asyncio.wait_for(began.wait(), 60)
            began.clear()
            server.kill()
            await asyncio.to_thread(server.start)
            await asyncio.wait_for(began.wait(), 60)
            async with asyncio.timeout(60):
                while running > 1:
                    await asyncio.sleep(0)
            assert jet.backend.restarted_at > 0
            ended.set()
            assert (await job.outcome(timeout=60)).state == "completed"
            queue.stop()
            await asyncio.wait_for(work, 60)
