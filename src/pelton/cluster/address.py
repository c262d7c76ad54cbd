"""From ``nats://a:4222,b:4222`` to the settings of a connection. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pelton.api import ConfigError
from pelton.api.codec import PREFIX

SCHEMES: Final = ("nats", "tls")
_PORT: Final = 4222


@dataclass(frozen=True)
class ClusterSettings:
    """How a cluster is reached. ``patience`` bounds, in seconds, how long an operation outlasts a lost connection.

    ``servers`` are URLs as nats-py takes them, with user and password or a token where they are needed;
    ``name`` is the address without those, for errors and logs.
    """

    servers: tuple[str, ...]
    name: str
    api_prefix: str = PREFIX
    patience: float = 30.0


def settings_of(address: str) -> ClusterSettings:
    """Return the settings that an address stands for; raises ConfigError.

    Several servers are separated by commas, the scheme and the credentials of the first hold for all that
    have none of their own.
    """
    scheme, _, rest = address.partition("://")
    first, *others = [part.strip() for part in rest.rstrip("/").split(",")]
    login = first.rpartition("@")[0]
    servers = [_server(scheme, first, login, address)]
    servers += [_server(scheme, part.rpartition("://")[2], login, address) for part in others]
    hosts = ",".join(server.rpartition("@")[2].removeprefix(f"{scheme}://") for server in servers)
    return ClusterSettings(servers=tuple(servers), name=f"{scheme}://{hosts}")


def _server(scheme: str, place: str, login: str, address: str) -> str:
    own, at, host = place.rpartition("@")
    credentials = own if at else login
    url = f"{scheme}://{credentials}@{host}" if credentials else f"{scheme}://{host}"
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError:
        raise _no_address(address) from None
    if not parts.hostname or parts.path or parts.query or parts.fragment:
        raise _no_address(address)
    return url if parts.port else f"{url}:{port}"


def _no_address(address: str) -> ConfigError:
    shown = address.partition("://")[0] + "://..." + address.rpartition("@")[2].partition("://")[2][:80]
    return ConfigError(f"{shown!r} is no address of a cluster: write it as 'nats://host:4222,other:4222'")
