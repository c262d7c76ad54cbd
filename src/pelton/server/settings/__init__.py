"""The configuration of a server, from flags and from a file."""

from pelton.server.settings.runtime import Endpoint as Endpoint
from pelton.server.settings.runtime import ServerSettings as ServerSettings
from pelton.server.settings.runtime import StoreSettings as StoreSettings
from pelton.server.settings.runtime import TlsDoor as TlsDoor
from pelton.server.settings.runtime import WebSocketDoor as WebSocketDoor
from pelton.server.settings.runtime import tls_context as tls_context
