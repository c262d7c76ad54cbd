"""DBOS on SQLite and on PostgreSQL: workflows of steps, and of one that waits for a message of another process."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID

from benchmarks.case import Run, Sample
from benchmarks.crossing import Got, Ready, crossing
from benchmarks.peers import job_servers

_CONCURRENCY = 64
_STEPS = 10
_POLL_S = 0.001


@contextmanager
def _address(run: Run, *, server: bool) -> Iterator[str]:
    if not server:
        yield f"sqlite:///{run.workdir / 'dbos.sqlite'}"
        return
    with job_servers.postgres() as address:
        home = address.removeprefix("host=").partition(" ")[0]
        yield f"postgresql://bench@/postgres?host={home}"


def _opened(url: str) -> Any:
    logging.disable(logging.WARNING)
    polling = {"notification_listener_polling_interval_sec": _POLL_S} if url.startswith("sqlite") else {}
    return DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, **polling})


async def worked(run: Run, server: bool) -> Sample:
    """Steps a second, of workflows that do ten each."""
    total = run.drain // 80
    with _address(run, server=server) as url:
        dbos = _opened(url)

        @DBOS.step()
        async def nothing() -> None: ...

        @DBOS.workflow()
        async def stepping() -> None:
            for _ in range(_STEPS):
                await nothing()

        dbos.launch()
        await DBOS.register_queue_async("bench", worker_concurrency=_CONCURRENCY, polling_interval_sec=0.01)
        handles = [await DBOS.enqueue_workflow_async("bench", stepping) for _ in range(_CONCURRENCY)]
        for handle in handles:
            await handle.get_result()
        # It works while others are enqueued.
        begun = perf_counter()
        handles = [await DBOS.enqueue_workflow_async("bench", stepping) for _ in range(total)]
        for handle in handles:
            await handle.get_result()
        finished = perf_counter()
        DBOS.destroy()
    return {"rate": total * _STEPS / (finished - begun)}


async def resume_across(run: Run, server: bool) -> Sample:
    """Milliseconds from the call of send here to where `recv` returns, in a workflow of another process."""
    with _address(run, server=server) as url:
        client = DBOSClient(system_database_url=url)
        numbers = iter(range(2 * run.samples))

        async def send(data: bytes) -> None:
            await client.send_async(f"w{next(numbers)}", data.decode())

        place = json.dumps({"url": url, "samples": run.samples})
        found = await crossing(run.samples, "peers.dbos_functions:wait_there", place, send)
        client.destroy()
        return found


async def wait_there(place: str, total: int, ready: Ready, got: Got) -> None:
    """The other process: workflows that wait."""
    about = json.loads(place)
    dbos = _opened(about["url"])

    @DBOS.workflow()
    async def waiting() -> None:
        got((await DBOS.recv_async(timeout_seconds=600)).encode())

    dbos.launch()
    handles = []
    for number in range(total):
        with SetWorkflowID(f"w{number}"):
            handles.append(await DBOS.start_workflow_async(waiting))
    await asyncio.sleep(2.0)
    ready()
    for handle in handles:
        await handle.get_result()
    DBOS.destroy()
