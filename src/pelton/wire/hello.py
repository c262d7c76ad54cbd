"""How the two sides introduce themselves: ``INFO`` of the server, ``CONNECT`` of the client; both JSON."""

from __future__ import annotations

import msgspec


class ServerHello(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a server tells of itself; field names are NATS's."""

    server_id: str
    server_name: str
    version: str
    go: str = ""
    git_commit: str = ""
    host: str
    port: int
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    max_payload: int = 0
    jetstream: bool = False
    client_id: int = 0
    client_ip: str = ""
    connect_info: bool = False
    remote_account: str = ""
    acc_is_sys: bool = False
    nonce: str = ""
    cluster: str = ""
    domain: str = ""
    connect_urls: tuple[str, ...] = ()
    ws_connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    proto: int = msgspec.field(default=0)
    api_lvl: int = 0


class ConnectOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a client tells of itself. A client that leaves ``verbose`` and ``pedantic`` out gets both, as on NATS."""

    verbose: bool = True
    pedantic: bool = True
    tls_required: bool = False
    auth_token: str | None = None
    user: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")
    jwt: str | None = None
    nkey: str | None = None
    sig: str | None = None
    account: str | None = None
    new_account: bool = False
    name: str | None = None
    lang: str | None = None
    version: str | None = None
    protocol: int = 0
    echo: bool = True
    headers: bool = False
    no_responders: bool = False


def parse_info(facts: bytes) -> ServerHello | None:
    """Return a server's introduction, or None if it is no valid JSON of one."""
    try:
        return msgspec.json.decode(facts, type=ServerHello)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
