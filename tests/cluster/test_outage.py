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
                held.set()
                await paint.enqueue(key="car1")
                await asyncio.wait_for(done.wait(), 60)
            finally:
                held.set()
                queue.stop()
                await asyncio.wait_for(work, 60)
            assert (await first.outcome(timeout=60)).state == "completed"
