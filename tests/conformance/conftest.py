"""One real server and a cluster of three for all cases; a fresh store or account for each case."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest

import pelton
from pelton.runtime import system_runtime
from pelton.server import Endpoint, Server, ServerSettings, StoreSettings
from pelton.server.settings.options import AccountConfig
from tests.conformance.accounts import Accounts, server_config
from tests.conformance.replicated import Replicated
from tests.conformance.wire import validated
from tests.kit.nats_server import nats_cluster, nats_server


@pytest.fixture(scope="session")
def on_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    with nats_server(tmp_path_factory.mktemp("nats"), extra=server_config()) as running:
        yield Accounts(running.url)


@pytest.fixture(scope="session")
def on_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    # Cases place streams by this tag.
    with nats_cluster(tmp_path_factory.mktemp("cluster"), extra=server_config(), tags=["ssd"] * 3) as running:
        yield Accounts(running.url)


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> pelton.AccountLimits | None:
    """The limits of the store's user, if the test is of a case that requires some."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    found: pelton.AccountLimits | None = getattr(case, "limits", None)
    return found


Opened = Callable[[], AbstractAsyncContextManager[pelton.Jet]]


@pytest.fixture
def opened(target: str, tmp_path: Path, limits: pelton.AccountLimits | None, request: pytest.FixtureRequest) -> Opened:
    """Opens an empty store, or an unused account."""
    if target.startswith("engine"):
        address = "memory:" if target == "engine-memory" else str(tmp_path / "store.pelton")
        return lambda: _validated(address, limits)
    if target == "served":
        return lambda: _served(tmp_path / "served.pelton", limits)
    accounts: Accounts = request.getfixturevalue("on_server" if target == "nats" else "on_cluster")
    if target == "nats-cluster":
        return lambda: _replicated(accounts.take(limits))
    # Without our message ids, so that sizes are those that the cases count.
    return lambda: pelton.open(accounts.take(limits), message_ids=False)


@pytest.fixture
async def jet(opened: Opened) -> AsyncIterator[pelton.Jet]:
    async with opened() as store:
        yield store


@asynccontextmanager
async def _validated(address: str, limits: pelton.AccountLimits | None) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address, limits=limits) as jet:
        validated(jet)
        yield jet


@asynccontextmanager
async def _served(path: Path, limits: pelton.AccountLimits | None) -> AsyncIterator[pelton.Jet]:
    store = StoreSettings(path=str(path), limits=limits or pelton.AccountLimits())
    accounts = {"$G": AccountConfig(name="$G", jetstream=limits)} if limits else {}
    settings = ServerSettings(stores={"$G": store}, accounts=accounts, endpoints=(Endpoint(port=-1),))
    server = Server(settings, system_runtime())
    await server.start()
    try:
        # Without our message ids, so that sizes are those that the cases count.
        async with pelton.open(f"nats://{server.endpoints[0]}", message_ids=False) as jet:
            yield jet
    finally:
        await server.close()


@asynccontextmanager
async def _replicated(address: str) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address, message_ids=False) as jet:
        jet.backend = Replicated(jet.backend)  # type: ignore[assignment]  # delegates what it does not have
        try:
            yield jet
        finally:
            # A stream that stays costs three servers an election and heartbeats.
            for name in await jet.stream_names():
                with suppress(pelton.ApiError):
                    await jet.delete_stream(name)
