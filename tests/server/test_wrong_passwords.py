"""A flood of wrong passwords, each a slow check, while others log in: they are let in as on nats-server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store

_RIGHT = 8
_FLOODING = 40
# Each check takes some 20 ms, so that a test is short.
_COST = 9


def _config() -> str:
    hashes = [bcrypt.hashpw(b"right", bcrypt.gensalt(_COST, prefix=b"2a")).decode()] * _RIGHT
    users = ",".join(f"{{ user: u{number}, password: '{each}' }}" for number, each in enumerate(hashes))
    return f"authorization {{ timeout: 60, users: [ {users} ] }}"


async def _is_let_in(port: int, user: int, password: str) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.readline()
        writer.write(f'CONNECT {{"verbose":false,"user":"u{user}","pass":"{password}"}}\r\nPING\r\n'.encode())
        while (line := await reader.readline()).startswith((b"INFO", b"PING")):
            pass
        return line == b"PONG\r\n"
    except ConnectionError:
        return False
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _flood(port: int, number: int) -> None:
    """Try wrong passwords, one after the other, without end."""
    while True:
        assert not await _is_let_in(port, number % _RIGHT, f"wrong {number}")


async def _let_in(port: int) -> int:
    """How many of those with the right password are let in beside a flood, half of them twice."""
    floods = [asyncio.ensure_future(_flood(port, number)) for number in range(_FLOODING)]
    try:
        found = await asyncio.gather(*(_is_let_in(port, user, "right") for user in range(_RIGHT)))
        found += await asyncio.gather(*(_is_let_in(port, user, "right") for user in range(0, _RIGHT, 2)))
        assert not any(each.done() for each in floods)
        return sum(found)
    finally:
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


@pytest.mark.parametrize("side", ["pelton", "nats-server"])
def test_right_ones_are_let_in_beside_a_flood_of_wrong_ones(side: str, tmp_path: Path) -> None:
    if side == "pelton":
        config = tmp_path / "server.conf"
        config.write_text(f"host: 127.0.0.1\n{_config()}")
        with served_store(None, ("-c", str(config))) as served:
            assert asyncio.run(_let_in(served.port)) == _RIGHT + _RIGHT // 2
    else:
        with nats_server(tmp_path, jetstream=False, extra=_config()) as real:
            assert asyncio.run(_let_in(real.port)) == _RIGHT + _RIGHT // 2
