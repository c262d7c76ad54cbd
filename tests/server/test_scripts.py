"""A served store shows clients what nats-server shows them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pytest

from pelton.testing.nats_server import NatsServer, nats_server
from tests.server.conftest import Started
from tests.server.raw import PLAIN, raw_client
from tests.server.scripts import SCRIPTS, Script

_accounts = itertools.count()
_ACCOUNTS = 60


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    accounts = "\n".join(
        f"a{number} {{ jetstream: enabled, users: [{{ user: u{number}, password: p }}] }}"
        for number in range(_ACCOUNTS)
    )
    with nats_server(tmp_path_factory.mktemp("nats"), extra=f"accounts {{ {accounts} }}") as running:
        yield running


def logged_in(port: int, user: str, connect: str = PLAIN):
    return raw_client(port, connect.replace("{", f'{{"user":"{user}","pass":"p",', 1))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_a_client_sees_the_same(script: Script, started: Started, oracle: NatsServer) -> None:
    expected = await script(partial(logged_in, oracle.port, f"u{next(_accounts)}"))
    server = await started()
    assert await script(partial(raw_client, server.endpoints[0].port)) == expected
