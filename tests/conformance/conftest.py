"""One real server for all cases, and a fresh store or an emptied server for each."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import pelton
from pelton.testing.nats_server import NatsServer, nats_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
def address(target: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    embedded = {"engine-memory": "memory:", "engine-file": str(tmp_path / "store.pelton")}
    return embedded.get(target) or request.getfixturevalue("server").url


@pytest.fixture
async def jet(address: str) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address) as opened:
        for name in await opened.stream_names():
            await opened.delete_stream(name)
        yield opened
