"""What audits and advisories tell of a client."""

from __future__ import annotations

from pelton.api import rfc3339
from pelton.api.durations import Duration
from pelton.api.events import ClientInfo
from pelton.api.times import SECOND
from pelton.runtime import Clock
from pelton.server.ports import Client


def info_of(client: Client, clock: Clock) -> ClientInfo:
    """Return what an audit tells of a client."""
    user, options = client.user, client.options
    return ClientInfo(
        start=rfc3339(clock.now() - int((clock.monotonic() - client.started) * SECOND)),
        rtt=Duration.of_ns(int((client.rtt or 0) * SECOND)),
        host=client.peer.rpartition(":")[0].strip("[]"),
        id=client.number,
        acc=user.account if user is not None else "",
        user=user.name if user is not None else "",
        name=options.name or "",
        lang=options.lang or "",
        ver=options.version or "",
        kind="Client",
        client_type="websocket" if client.is_bridged else "nats",
    )
