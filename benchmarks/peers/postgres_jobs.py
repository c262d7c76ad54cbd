"""procrastinate and DBOS on PostgreSQL: no-op jobs in one process."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import procrastinate
from dbos import DBOS

from benchmarks.case import Run, Sample
from benchmarks.load import JobTimes
from benchmarks.peers import job_servers

_CONCURRENCY = 64


async def on_procrastinate(run: Run) -> Sample:
    """Defer all, then work them off, many at once."""
    total = run.drain // 20
    with job_servers.postgres() as address:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address))

        @app.task(name="noop")
        async def noop() -> None: ...

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            begun = perf_counter()
            for _ in range(total):
                await noop.defer_async()
            enqueued = perf_counter()
            await app.run_worker_async(wait=False, concurrency=_CONCURRENCY, install_signal_handlers=False)
            return JobTimes(begun, enqueued, perf_counter()).rates(total)


def on_dbos(run: Run) -> Sample:
    """Enqueue workflows of one step that does nothing, then await all results."""
    logging.disable(logging.WARNING)
    total = run.drain // 80
    with job_servers.postgres() as address:
        home = address.removeprefix("host=").partition(" ")[0]
        url = f"postgresql://bench@/postgres?host={home}"
        dbos: Any = DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False})

        @DBOS.workflow()
        def noop() -> None: ...

        dbos.launch()
        DBOS.register_queue("bench", polling_interval_sec=0.01)
        begun = perf_counter()
        handles = [DBOS.enqueue_workflow("bench", noop) for _ in range(total)]
        enqueued = perf_counter()
        for handle in handles:
            handle.get_result()
        finished = perf_counter()
        DBOS.destroy()
        return JobTimes(begun, enqueued, finished).rates(total)
