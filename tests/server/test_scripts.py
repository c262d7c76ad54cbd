"""A served store shows clients what nats-server shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.server.conftest import Started
from tests.server.oracle import Oracle, running_oracle
from tests.server.programs import PROGRAMS, Program
from tests.server.raw import PLAIN, RawClient, raw_client
from tests.server.scripts import SCRIPTS, Script


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running_oracle(tmp_path_factory.mktemp("nats")) as running:
        yield running


@asynccontextmanager
async def logged_in(port: int, user: str, connect: str = PLAIN) -> AsyncIterator[RawClient]:
    async with raw_client(port, connect.replace("{", f'{{"user":"{user}","pass":"p",', 1)) as client:
        yield client


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_a_client_sees_the_same(script: Script, started: Started, oracle: Oracle) -> None:
    expected = await script(partial(logged_in, oracle.port, oracle.user()))
    server = await started()
    assert await script(partial(raw_client, server.endpoints[0].port)) == expected


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_a_program_sees_the_same(program: Program, started: Started, oracle: Oracle) -> None:
    user = oracle.user()
    expected = await played(program, partial(nats.connect, f"nats://{user}:p@127.0.0.1:{oracle.port}"))
    server = await started()
    assert await played(program, partial(nats.connect, f"nats://{server.endpoints[0]}")) == expected


async def played(program: Program, connect: Callable[[], Awaitable[Client]]) -> list[Any]:
    clients: list[Client] = []

    async def connected() -> Client:
        clients.append(await connect())
        return clients[-1]

    try:
        return await program(connected)
    finally:
        for client in clients:
            await client.close()
