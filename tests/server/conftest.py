"""A server in this process, on a free port, and clients of nats-py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from pelton.runtime import system_runtime
from pelton.server import Server, ServerSettings, StoreSettings
from pelton.server.settings import Endpoint

Started = Callable[..., Awaitable[Server]]
Connected = Callable[..., Awaitable[Client]]
ANYWHERE = Endpoint(port=-1)


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    """Starts servers; keyword arguments are settings."""
    servers: list[Server] = []

    async def start(**settings: Any) -> Server:
        settings = {
            "endpoints": (ANYWHERE,),
            "stores": {"$G": StoreSettings(path=str(tmp_path / "store.pelton"))},
        } | settings
        authenticator = settings.pop("authenticator", None)
        server = Server(ServerSettings(**settings), system_runtime(), authenticator)
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def server(started: Started) -> Server:
    return await started()


@pytest.fixture
async def connected(server: Server) -> AsyncIterator[Connected]:
    """Connects clients of nats-py to the server, or to another one; keyword arguments are nats-py's."""
    clients: list[Client] = []

    async def connect(to: Server | None = None, **options: Any) -> Client:
        where = (to or server).endpoints[0]
        client = await nats.connect(f"nats://{where}", **({"allow_reconnect": False} | options))
        clients.append(client)
        return client

    yield connect
    for client in clients:
        if not client.is_closed:
            await client.close()


async def settled(client: Client) -> None:
    """Return when the server has processed what was sent. One ping of nats-py may overtake a subscription before it."""
    await client.flush()
    await client.flush()
