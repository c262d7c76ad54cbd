"""What a server is told: by flags, and by a configuration file."""

from pelton.server.settings.options import Endpoint, ServerSettings, StoreSettings
from pelton.server.settings.tls import TlsDoor, tls_context

__all__ = ["Endpoint", "ServerSettings", "StoreSettings", "TlsDoor", "tls_context"]
