"""Very many connect at once: some are accepted in one round of the event loop, and others have their turn."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

from pelton.runtime import system_runtime
from pelton.server.listening import _AT_ONCE, Listener
from pelton.server.settings import Endpoint

MANY = 5 * _AT_ONCE


async def test_some_are_accepted_at_a_time() -> None:
    accepted: list[socket.socket] = []

    async def accept(client: socket.socket) -> None:
        accepted.append(client)

    listener = Listener(Endpoint(port=-1), accept, system_runtime())
    listener.open()
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.endpoint.port)))
        rounds = []
        while (before := len(accepted)) < MANY:
            await asyncio.sleep(0)
            rounds.append(len(accepted) - before)
        assert max(rounds) <= _AT_ONCE
        for one in accepted:
            one.close()
    await listener.close()
