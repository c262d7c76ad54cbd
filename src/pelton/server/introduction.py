"""What a server tells clients of itself."""

from __future__ import annotations

import platform
from typing import Any

from pelton._version import VERSION
from pelton.server.jetstream.replies import API_LEVEL, NATS_VERSION
from pelton.server.settings import ServerSettings
from pelton.wire import ServerHello


def introduction(settings: ServerSettings, **known: Any) -> ServerHello:
    """Return what everybody is told of a server; ``known`` are the fields that are not among its settings."""
    return ServerHello(
        version=NATS_VERSION,
        go=f"python{platform.python_version()}",
        git_commit=f"pelton-{VERSION}",
        headers=True,
        tls_required=settings.tls is not None,
        tls_verify=settings.tls is not None and settings.tls.verify,
        max_payload=settings.max_payload,
        domain=settings.domain,
        proto=1,
        api_lvl=API_LEVEL,
        **known,
    )
