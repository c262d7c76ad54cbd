"""TLS: a client that connects is greeted before or after its handshake.

NATS tells a client in plain text that TLS is required, and the client begins its handshake on the same connection. The
greeting is written to the socket before any of the client's bytes are read, so that a quick client's first bytes are
never taken for a command. A door may want the handshake first instead; or wait a moment for it, and greet a client that
sends nothing.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any, Final

from pelton.server.settings import TlsDoor

_HANDSHAKE: Final = 0x16


async def let_in(accepted: socket.socket, make: Callable[[], Any], door: TlsDoor | None) -> None:
    """Make an accepted socket a connection. Raises OSError if the client leaves, or its handshake fails."""
    loop = asyncio.get_running_loop()
    client = make()
    if door is None:
        await loop.connect_accepted_socket(lambda: client, accepted)
        return
    if not await _comes_first(accepted, door):
        async with asyncio.timeout(door.timeout):
            await loop.sock_sendall(accepted, client.greeting(_address(accepted)))
    await loop.connect_accepted_socket(lambda: client, accepted, ssl=door.context, ssl_handshake_timeout=door.timeout)


async def _comes_first(accepted: socket.socket, door: TlsDoor) -> bool:
    """Whether the client begins with its handshake."""
    if isinstance(door.first, bool):
        return door.first
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(accepted, readable.cancel)
    try:
        await asyncio.wait([readable], timeout=door.first)
    finally:
        loop.remove_reader(accepted)
    if not select.select([accepted], [], [], 0)[0]:
        return False
    begun = accepted.recv(1, socket.MSG_PEEK)
    return bool(begun) and begun[0] == _HANDSHAKE


def _address(accepted: socket.socket) -> object:
    try:
        return accepted.getpeername()
    except OSError:
        return None
