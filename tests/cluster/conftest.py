"""A real server that a test can kill and restart."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import pelton
from tests.kit.nats_server import NatsServer, nats_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path) as running:
        yield running


@pytest.fixture
async def jet(server: NatsServer) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(server.url) as opened:
        yield opened
