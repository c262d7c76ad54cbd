"""What a server is told: by flags, and by a configuration file."""

from pelton.server.settings.runtime import Endpoint, ServerSettings, StoreSettings, TlsDoor, WebSocketDoor, tls_context

__all__ = ["Endpoint", "ServerSettings", "StoreSettings", "TlsDoor", "WebSocketDoor", "tls_context"]
