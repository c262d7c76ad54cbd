"""One real server for all cases; a fresh store, or an account of its own on the server, for each."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import pelton
from pelton.testing.nats_server import NatsServer, nats_server

_ACCOUNTS = 2000


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    account = "a%d { jetstream: enabled, users: [{ user: u%d, password: p }] }"
    accounts = "\n".join(account % (number, number) for number in range(_ACCOUNTS))
    with nats_server(tmp_path_factory.mktemp("nats"), extra=f"accounts {{ {accounts} }}") as running:
        yield running


@pytest.fixture(scope="session")
def free_accounts(server: NatsServer) -> Iterator[str]:
    return (server.url.replace("//", f"//u{number}:p@") for number in range(_ACCOUNTS))


@pytest.fixture
def address(target: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    embedded = {"engine-memory": "memory:", "engine-file": str(tmp_path / "store.pelton")}
    return embedded.get(target) or next(request.getfixturevalue("free_accounts"))


@pytest.fixture
async def jet(address: str) -> AsyncIterator[pelton.Jet]:
    # Without ids of ours, so that sizes are those the cases count.
    async with pelton.open(address, message_ids=False) if "://" in address else pelton.open(address) as opened:
        yield opened
