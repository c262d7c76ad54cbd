"""An account whose limits depend on the copies of its streams: its info tells them as nats-server does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, jwt, user_jwt
from tests.server.auth.real import BareClient

_REQUESTS = (
    ("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "max_bytes": 1000}),
    ("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory"}),
    ("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}),
)


def _tier(copies: int) -> dict[str, int]:
    return {"mem_storage": 10**6 * copies, "disk_storage": 10**7 * copies, "streams": 3, "consumer": 4}


def _config() -> str:
    operator, account, system = Key("operator"), Key("account"), Key("account", 2)
    limits = ACCOUNT_LIMITS | {"tiered_limits": {"R1": _tier(1) | {"max_ack_pending": 50}, "R3": _tier(3)}}
    said = jwt(operator, operator.public, "operator", nats={"system_account": system.public})
    tokens = {
        account.public: account_jwt(operator, account, {"limits": limits}),
        system.public: account_jwt(operator, system),
    }
    preloaded = ", ".join(f'{key}: "{token}"' for key, token in tokens.items())
    return f'operator: "{said}"\nresolver: MEMORY\nresolver_preload {{ {preloaded} }}\n'


def _told(port: int) -> list[dict[str, Any]]:
    account, user = Key("account"), Key("user")
    client = BareClient(port, lambda nonce: {"jwt": user_jwt(account, user), "sig": user.signature(nonce)})
    assert client.ask()
    found = [json.loads(client.request("$JS.API.INFO"))]
    for path, body in _REQUESTS:
        assert "error" not in client.request(f"$JS.API.{path}", json.dumps(body))
    client.request("s", "hello")
    found.append(json.loads(client.request("$JS.API.INFO")))
    client.close()
    return [info | {"api": None} for info in found]


def test_the_info_of_an_account_with_tiers(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats", extra=_config()) as server:
        expected = _told(server.port)
    assert expected[1]["tiers"]["R1"]["streams"] == 2
    (tmp_path / "c.conf").write_text(f"jetstream {{ store_dir: '{tmp_path}' }}\n{_config()}")
    with served_store(None, ["-c", str(tmp_path / "c.conf")]) as served:
        assert _told(served.port) == expected
