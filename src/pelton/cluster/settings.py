"""How to reach a cluster, and with which login: from an address, options, or a context of the NATS command line tool.

There is one login (URL, user and password, token, credentials file, or nkey), and a second one is refused rather than
ignored. Files are checked here, so that a wrong path is reported before anything is tried; a credentials file is read
again for every connection, so that you can renew it.

**Contexts of the NATS command line tool: files that describe how to reach a cluster.** ``nats context`` keeps them as
``~/.config/nats/context/<name>.json``. An option that you pass to ``pelton.open`` overrides the file's.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pelton.api import ConfigError
from pelton.api.backend import StrPath
from pelton.api.build import seconds_to_ns
from pelton.api.codec import PREFIX
from pelton.api.errors import brief
from pelton.api.json_values import UNREADABLE
from pelton.subjects import is_subject

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


_INBOX: Final = "_INBOX"
_SEED_LENGTH: Final = 58
# Together with the longest subject and two names it must fit into a server's control line (subjects.LONGEST).
_LONGEST_PREFIX: Final = 128


@dataclass(frozen=True)
class Login:
    """The login: one of these at most, and the TLS settings. Never shown."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    nkey_seed: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    tls_first: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for nats-py."""
        return {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.credentials,
            "nkeys_seed_str": self.nkey_seed,
            "tls": self.tls,
            "tls_handshake_first": self.tls_first,
        }


@dataclass(frozen=True)
class ClusterSettings:
    """How to reach a cluster.

    ``servers`` are URLs for nats-py; ``name`` is the address without secrets, for errors and logs.
    ``patience`` limits, in seconds, how long an operation outlasts a lost connection or an election.
    ``message_ids``: whether publishes without an id get one (docs/decisions/0012). ``dial`` returns a socket to a
    server in this process, and is used instead of the addresses.
    """

    servers: tuple[str, ...]
    name: str
    login: Login = Login()
    insists_on_tls: bool = False
    api_prefix: str = PREFIX
    inbox_prefix: str = _INBOX
    patience: float = 30.0
    message_ids: bool = True
    dial: Callable[[], socket.socket] | None = field(default=None, repr=False)


def settings_of(
    address: str,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: StrPath | None = None,
    nkey: StrPath | None = None,
    tls: ssl.SSLContext | None = None,
    tls_ca: StrPath | None = None,
    tls_cert: StrPath | None = None,
    tls_key: StrPath | None = None,
    tls_first: bool = False,
    domain: str | None = None,
    api_prefix: str | None = None,
    inbox_prefix: str | None = None,
    patience: float | timedelta = 30.0,
    message_ids: bool = True,
) -> ClusterSettings:
    """Return the settings for an address and the options of ``pelton.open``; raises ConfigError."""
    found = parse_address(address)
    ways = {
        "the address": found.has_login or None,
        "user and password": None if user is None and password is None else True,
        "token": token,
        "credentials": credentials,
        "nkey": nkey,
    }
    given = [way for way, value in ways.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} each give a login for {found.name}: keep one of them")
    if (user is None) != (password is None):
        raise ConfigError(f"user and password for {found.name} belong together: give both, or a token")
    login = Login(
        user=user,
        password=password,
        token=token,
        credentials=None if credentials is None else _credentials(credentials),
        nkey_seed=None if nkey is None else _seed(nkey),
        tls=_tls(tls, tls_ca, tls_cert, tls_key),
        tls_first=tls_first,
    )
    return ClusterSettings(
        servers=found.servers,
        name=found.name,
        login=login,
        insists_on_tls=found.is_tls or login.tls is not None or tls_first,
        api_prefix=_api_prefix(domain, api_prefix),
        inbox_prefix=_INBOX if inbox_prefix is None else _prefix("inbox_prefix", inbox_prefix),
        patience=seconds_to_ns("patience", patience) / 1e9,
        message_ids=message_ids,
    )


def settings_by(dial: Callable[[], socket.socket], name: str, inbox_prefix: str) -> ClusterSettings:
    """Return the settings for what a server in this process leads to; ``name`` is for errors and logs."""
    return ClusterSettings(servers=("nats://in-process:4222",), name=name, inbox_prefix=inbox_prefix, dial=dial)


def in_domain(
    settings: ClusterSettings, domain: str | None, patience: float | timedelta, api_prefix: str | None = None
) -> ClusterSettings:
    """Return the settings for another JetStream that the same servers lead to: by its domain, or the prefix of its API.

    Raises ConfigError.
    """
    prefix, patience_ns = _api_prefix(domain, api_prefix), seconds_to_ns("patience", patience)
    return replace(settings, api_prefix=prefix, patience=patience_ns / 1e9)


def _api_prefix(domain: str | None, api_prefix: str | None) -> str:
    if domain is None:
        return PREFIX if api_prefix is None else _prefix("api_prefix", api_prefix)
    if api_prefix is not None:
        raise ConfigError("domain and api_prefix both locate the JetStream API: keep one of them")
    if not isinstance(domain, str) or "." in domain or not is_subject(domain):
        raise ConfigError(f"domain {domain!r} must be one token: no dots, wildcards or white space")
    return _prefix("domain", f"$JS.{domain}.API")


def _prefix(option: str, value: str) -> str:
    prefix = value.removesuffix(".")
    if not is_subject(prefix):
        raise ConfigError(f"{option} {value!r} is not a subject: write tokens separated by dots, no wildcards")
    if len(prefix.encode()) > _LONGEST_PREFIX:
        raise ConfigError(f"{option} {brief(value)} makes a prefix of more than {_LONGEST_PREFIX} bytes")
    return prefix


def _credentials(path: StrPath) -> str:
    _need_nkeys("credentials")
    text = _text("credentials", path)
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise ConfigError(
            f"credentials {os.fspath(path)!r}: the file holds no user JWT and nkey seed; "
            "make it with `nsc generate creds`"
        )
    return os.fspath(path)


def _seed(nkey: StrPath) -> str:
    _need_nkeys("nkey")
    import nkeys

    text = os.fspath(nkey)
    is_seed = len(text) == _SEED_LENGTH and text.startswith("S")
    seed = text if is_seed else _text("nkey", nkey).strip()
    where = "" if is_seed else f" {text!r}"
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        user = pair.public_key.startswith(b"U")
    except Exception:  # nkeys raises errors of several libraries
        raise ConfigError(f"nkey{where}: this is not a seed; one begins with SU and has 58 characters") from None
    if not user:
        raise ConfigError(f"nkey{where}: this is a seed, but not of a user (SU...)")
    return seed


def _need_nkeys(option: str) -> None:
    try:
        import nkeys  # noqa: F401  # the question is whether it is there
    except ModuleNotFoundError:
        raise ConfigError(f"{option} needs nkeys, which is not installed: pip install 'pelton[cluster]'") from None


def _text(option: str, path: StrPath) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{option}: the file {os.fspath(path)!r} cannot be read: {reason}") from None


def _tls(
    context: ssl.SSLContext | None, ca: StrPath | None, cert: StrPath | None, key: StrPath | None
) -> ssl.SSLContext | None:
    if context is not None:
        if ca is not None or cert is not None or key is not None:
            raise ConfigError("tls is a whole SSLContext: load tls_ca, tls_cert and tls_key into it, or leave it out")
        return context
    if ca is None and cert is None and key is None:
        return None
    if key is not None and cert is None:
        raise ConfigError("tls_key without tls_cert: a key belongs to a certificate")
    for option, path in (("tls_ca", ca), ("tls_cert", cert), ("tls_key", key)):
        if path is not None:
            _text(option, path)
    try:
        made = ssl.create_default_context(cafile=None if ca is None else os.fspath(ca))
        if cert is not None:
            made.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"tls_ca, tls_cert or tls_key cannot be used: {error}") from None
    return made


_OPTIONS: Final = {
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "credentials",
    "nkey": "nkey",
    "ca": "tls_ca",
    "cert": "tls_cert",
    "key": "tls_key",
    "tls_first": "tls_first",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "api_prefix",
    "inbox_prefix": "inbox_prefix",
}
"""The file's name of each option, and ours."""
_FILES: Final = ("creds", "nkey", "ca", "cert", "key")
_WITHOUT_EFFECT: Final = ("description", "color_scheme", "jetstream_event_prefix", "url")
_LOGIN: Final = ("user", "password", "token", "credentials", "nkey")
_TLS: Final = ("tls_ca", "tls_cert", "tls_key")
_API: Final = ("domain", "api_prefix")


def read_context(path: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return address and options of a context file, overridden by the options ``given``."""
    known = _fields(path)
    unknown = [name for name, value in known.items() if value and name not in _OPTIONS and name not in _WITHOUT_EFFECT]
    if unknown:
        raise ConfigError(f"context {path!r} uses {', '.join(unknown)}, which Pelton does not support")
    options = {
        ours: os.path.expanduser(known[theirs]) if theirs in _FILES else known[theirs]
        for theirs, ours in _OPTIONS.items()
        if known.get(theirs)
    }
    for together, outweighed in ((_LOGIN, _LOGIN), (("tls", *_TLS), _TLS), (_API, _API)):
        if any(name in given for name in together):
            options = {name: value for name, value in options.items() if name not in outweighed}
    return _address(known.get("url") or "nats://localhost:4222"), options | given


def _fields(path: str) -> dict[str, Any]:
    try:
        known = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"context: the file {path!r} cannot be read: {error.strerror}") from None
    except UNREADABLE as error:
        raise ConfigError(f"context {path!r} is not JSON: {error}") from None
    if not isinstance(known, dict):
        raise ConfigError(f"context {path!r} is not a JSON object: make it with `nats context save`")
    return known


def _address(url: str) -> str:
    return url if "://" in url else f"nats://{url}"
