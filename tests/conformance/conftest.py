"""One real server for all cases; a fresh store, or an account of its own on the server, for each."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import pelton
from pelton.testing.nats_server import NatsServer, nats_server

pytest.register_assert_rewrite("pelton.testing.conformance")

from tests.conformance.accounts import Accounts, server_config  # noqa: E402  # after the line above


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats"), extra=server_config()) as running:
        yield running


@pytest.fixture(scope="session")
def free_accounts(server: NatsServer) -> Accounts:
    return Accounts(server.url)


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> pelton.AccountLimits | None:
    """What the user of the store may use, where the test is of a case that asks for limits."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    found: pelton.AccountLimits | None = getattr(case, "limits", None)
    return found


@pytest.fixture
def address(target: str, tmp_path: Path, limits: pelton.AccountLimits | None, request: pytest.FixtureRequest) -> str:
    embedded = {"engine-memory": "memory:", "engine-file": str(tmp_path / "store.pelton")}
    if target in embedded:
        return embedded[target]
    accounts: Accounts = request.getfixturevalue("free_accounts")
    return accounts.take(limits)


@pytest.fixture
async def jet(address: str, limits: pelton.AccountLimits | None) -> AsyncIterator[pelton.Jet]:
    # On a cluster without ids of ours, so that sizes are those the cases count.
    cluster = "://" in address
    async with pelton.open(address, message_ids=False) if cluster else pelton.open(address, limits=limits) as opened:
        yield opened
