"""Where and how WebSocket clients come in."""

from __future__ import annotations

import msgspec

from pelton.server.settings.tls import TlsDoor


class WebSocketDoor(msgspec.Struct, frozen=True, kw_only=True):
    """The listener of WebSocket clients; `timeout` in seconds bounds their handshake.

    A browser tells the origin of its page: with `same_origin` it must be the host that it connects to, with
    `allowed_origins` (``https://example.com``) one of these. Other clients tell none, and are let in.
    """

    host: str = "127.0.0.1"
    """The address of an interface."""
    port: int = -1
    """The port; -1 for any free one."""
    tls: TlsDoor | None = None
    """How clients use TLS; None for not at all."""
    same_origin: bool = False
    """Whether a page must come from the host that it connects to."""
    allowed_origins: tuple[str, ...] = ()
    """The origins that pages may come from (`https://example.com`); empty for any."""
    compression: bool = False
    """Whether messages may be compressed."""
    timeout: float = 2.0
    """How many seconds the handshake may take."""
    auth_timeout: float = 0.0
    """How many seconds a client has to log in; 0 for those of all clients."""

    def admits(self, origin: str, host: str) -> bool:
        """Whether a page of an origin may connect to a host."""
        if not origin:
            return True
        if self.same_origin and origin.partition("://")[2].lower() != host.lower():
            return False
        return not self.allowed_origins or origin.lower() in map(str.lower, self.allowed_origins)
