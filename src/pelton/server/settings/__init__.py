"""What a server is told: by flags, and by a configuration file."""

from pelton.server.settings.options import Endpoint, ServerSettings, StoreSettings
from pelton.server.settings.tls import TlsDoor, tls_context
from pelton.server.settings.web_socket import WebSocketDoor

__all__ = ["Endpoint", "ServerSettings", "StoreSettings", "TlsDoor", "WebSocketDoor", "tls_context"]
