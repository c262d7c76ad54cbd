"""What clients sign."""

from __future__ import annotations

from pelton.runtime import system_runtime
from pelton.server import Server, ServerSettings


def test_no_two_clients_sign_the_same_text() -> None:
    server = Server(ServerSettings(), system_runtime())
    nonces = [server.new_nonce() for _ in range(1000)]
    assert len(set(nonces)) == 1000
    assert len({nonce[:8] for nonce in nonces}) == 1000
    assert {len(nonce) for nonce in nonces} == {15}
