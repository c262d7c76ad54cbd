"""Contexts of the NATS command line tool: files that describe how to reach a cluster.

``nats context`` keeps them as ``~/.config/nats/context/<name>.json``. An option that you pass to ``pelton.open``
overrides the file's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from pelton.api import ConfigError
from pelton.api.json_values import UNREADABLE

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
