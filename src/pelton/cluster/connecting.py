"""Connecting for the first time, and reporting clearly why it failed."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import nats.errors

from pelton.api import (
    JetStreamMissingError,
    PeltonError,
    ServerRefusedError,
    ServerUnreachableError,
)
from pelton.cluster.client import NatsClient
from pelton.cluster.settings import ClusterSettings
from pelton.runtime import interruptible

_CONNECT_S: Final = 5
_PAUSE_S: Final = 0.1
_PING_S: Final = 10
_FOR_EVER: Final = -1
_OLDEST: Final = (2, 10)
_REFUSED: Final = ("authorization", "authentication", "account", "credentials", "certificate", "tls", "ssl", "expired")
_DENIED: Final = "permissions violation for "

Callback = Callable[[], Awaitable[None]]


async def connected(
    client: NatsClient,
    settings: ClusterSettings,
    complained: Callable[[Exception], Awaitable[None]],
    lost: Callback,
    back: Callback,
    complaints: Sequence[Exception],
) -> None:
    """Connect a client to any server of a cluster, which stays connected from then on.

    Raises ServerUnreachableError, ServerRefusedError, JetStreamMissingError for a server that is too old.
    """
    try:
        connecting = client.connect(
            servers=list(settings.servers),
            name="pelton",
            connect_timeout=_CONNECT_S,
            ping_interval=_PING_S,
            # For the first connection; a lost one is retried any number of times.
            max_reconnect_attempts=1,
            reconnect_time_wait=_PAUSE_S,  # type: ignore[arg-type]  # seconds to sleep, a fraction will do
            inbox_prefix=settings.inbox_prefix,
            error_cb=complained,
            disconnected_cb=lost,
            reconnected_cb=back,
            closed_cb=back,
            **settings.login.arguments(),
        )
        await interruptible(connecting)
    except (OSError, nats.errors.Error, TimeoutError) as error:
        await client.abandon()
        raise refusal(settings.name, complaints, str(error)) from None
    except BaseException:
        client.cut()
        raise
    client.options["max_reconnect_attempts"] = _FOR_EVER
    version = client.connected_server_version
    if (version.major, version.minor) < _OLDEST:
        await client.abandon()
        reason = f"its version is {version.major}.{version.minor}, and 2.10 is the oldest supported"
        raise JetStreamMissingError(settings.name, reason)


def refusal(name: str, complaints: Sequence[Exception], otherwise: str) -> PeltonError:
    """Return why a cluster refuses the connection, from the errors of its servers and the network."""
    for complaint in complaints:
        # A server that refuses may also cut the connection: its refusal tells more.
        text = str(complaint).removeprefix("nats: ")
        if isinstance(complaint, ssl.SSLError) or any(word in text.lower() for word in _REFUSED):
            return ServerRefusedError(name, text)
    return ServerUnreachableError(name, str(complaints[-1]) if complaints else otherwise)


def denied(error: Exception) -> str | None:
    """Return the subject of a request or subscription that a server refused for lack of permission."""
    _, found, rest = str(error).partition(_DENIED)
    return rest.split('"')[1] if found and '"' in rest else None
