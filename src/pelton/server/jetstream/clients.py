"""What audits and advisories tell of a client."""

from __future__ import annotations

from pelton.api.events import ClientInfo
from pelton.server.ports import Client


def info_of(client: Client) -> ClientInfo:
    """Return what an audit tells of a client."""
    user, options = client.user, client.options
    return ClientInfo(
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
