"""Stores and queues for the tests of the work queue."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import Jet
from pelton.queue import Queue

OpenQueue = Callable[..., Awaitable[Queue]]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.pelton")


@pytest.fixture
async def jet(path: str) -> AsyncIterator[Jet]:
    async with pelton.open(path, sync="off") as jet:
        yield jet


@pytest.fixture
async def queue(jet: Jet) -> Queue:
    return await jet.queue("garage")


@pytest.fixture
async def keyed(jet: Jet) -> Queue:
    return await jet.queue("keyed", exclusive=True, lease=0.3)


@pytest.fixture
async def another(path: str) -> AsyncIterator[OpenQueue]:
    """Open a queue once more, through a connection of its own."""
    async with AsyncExitStack() as stack:

        async def opened(name: str, **options: Any) -> Queue:
            jet = await stack.enter_async_context(pelton.open(path, sync="off"))
            return await jet.queue(name, **options)

        yield opened
