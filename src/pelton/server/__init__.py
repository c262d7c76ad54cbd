"""A NATS server on a store: any NATS client works with the streams of a Pelton file."""

from pelton.server.server import Server
from pelton.server.settings import Endpoint, ServerSettings, StoreSettings, TlsDoor, WebSocketDoor, tls_context

__all__ = ["Endpoint", "Server", "ServerSettings", "StoreSettings", "TlsDoor", "WebSocketDoor", "tls_context"]
