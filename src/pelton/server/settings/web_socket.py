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
    port: int = -1
    tls: TlsDoor | None = None
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()
    compression: bool = False
    timeout: float = 2.0

    def admits(self, origin: str, host: str) -> bool:
        """Whether a page of an origin may connect to a host."""
        if not origin:
            return True
        if self.same_origin and origin.partition("://")[2].lower() != host.lower():
            return False
        return not self.allowed_origins or origin.lower() in map(str.lower, self.allowed_origins)
