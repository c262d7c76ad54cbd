"""Stores and queues for the tests of the work queue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pelton import Jet
from pelton.queue import Queue
from tests.kit.nats_server import NatsServer, nats_server
from tests.queue.helpers import open_store

OpenQueue = Callable[..., Awaitable[Queue]]


ON_BOTH = pytest.mark.parametrize("path", ["file", "nats"], indirect=True)
"""For tests of promises that a cluster keeps as well."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store for jobs: a new file, or an empty server."""
    if getattr(request, "param", "file") == "file":
        return str(tmp_path / "store.pelton")
    address = str(request.getfixturevalue("server").url)
    async with open_store(address) as jet:
        for name in await jet.stream_names():
            await jet.delete_stream(name)
    return address


@pytest.fixture
async def jet(path: str) -> AsyncIterator[Jet]:
    async with open_store(path) as jet:
        yield jet


@pytest.fixture
async def queue(jet: Jet) -> Queue:
    return await jet.queue("garage")


@pytest.fixture
async def keyed(jet: Jet) -> Queue:
    return await jet.queue("keyed", exclusive=True, lease=60)


@pytest.fixture
async def another(path: str) -> AsyncIterator[OpenQueue]:
    """Open a queue once more, through another connection."""
    async with AsyncExitStack() as stack:

        async def opened(name: str, **options: Any) -> Queue:
            jet = await stack.enter_async_context(open_store(path))
            return await jet.queue(name, **options)

        yield opened
