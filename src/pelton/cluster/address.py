"""From ``nats://a:4222,b:4222`` to the servers of a cluster. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pelton.api import ConfigError

SCHEMES: Final = ("nats", "tls")
_PORT: Final = 4222


class Address(NamedTuple):
    """The ``servers`` as URLs, and their common ``name`` without credentials, for errors and logs."""

    servers: tuple[str, ...]
    name: str
    has_login: bool

    @property
    def is_tls(self) -> bool:
        """Whether the connection has to be encrypted."""
        return self.name.startswith("tls:")


def parse_address(address: str) -> Address:
    """Return the servers that an address names; raises ConfigError.

    Several servers are separated by commas; the scheme and the credentials of the first apply to all that
    have none of their own.
    """
    scheme, _, rest = address.partition("://")
    first, *others = [part.strip() for part in rest.rstrip("/").split(",")]
    login = first.rpartition("@")[0]
    servers = [_server(scheme, first, login, address)]
    servers += [_server(scheme, part.rpartition("://")[2], login, address) for part in others]
    hosts = ",".join(server.rpartition("@")[2].removeprefix(f"{scheme}://") for server in servers)
    return Address(tuple(servers), f"{scheme}://{hosts}", any("@" in server for server in servers))


def _server(scheme: str, place: str, login: str, address: str) -> str:
    own, at, host = place.rpartition("@")
    credentials = own if at else login
    url = f"{scheme}://{credentials}@{host}" if credentials else f"{scheme}://{host}"
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError:
        raise _no_address(address) from None
    if scheme not in SCHEMES or not parts.hostname or parts.path or parts.query or parts.fragment:
        raise _no_address(address)
    return url if parts.port else f"{url}:{port}"


def _no_address(address: str) -> ConfigError:
    shown = address.partition("://")[0] + "://..." + address.rpartition("@")[2].partition("://")[2][:80]
    return ConfigError(f"{shown!r} is not the address of a cluster: write it as 'nats://host:4222,other:4222'")
