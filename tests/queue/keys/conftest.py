"""Queues whose keys are records: on nats-server, and on a file that pretends to have no exclusive subjects."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from pelton import Jet
from pelton.queue import Queue
from pelton.queue.job_source import JobSource
from tests.queue.helpers import open_store, pretend_cluster

LEASE_S = 0.5


@pytest.fixture
async def jet(path: str) -> AsyncIterator[Jet]:
    async with open_store(path) as jet:
        pretend_cluster(jet)
        yield jet


@pytest.fixture
async def queue(jet: Jet) -> Queue:
    return await jet.queue("garage", exclusive=True, lease=LEASE_S)


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[Callable[[str], JobSource]]:
    """Return the job source of a worker with that name."""
    async with AsyncExitStack() as stack:

        def made(name: str) -> JobSource:
            job_source = queue._context.source_for(name)
            stack.push_async_callback(job_source.close)
            return job_source

        yield made
