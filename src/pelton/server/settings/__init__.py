"""The configuration of a server, from flags and from a file."""

from pelton.server.settings.runtime import Endpoint, ServerSettings, StoreSettings, TlsDoor, WebSocketDoor, tls_context

__all__ = ["Endpoint", "ServerSettings", "StoreSettings", "TlsDoor", "WebSocketDoor", "tls_context"]
