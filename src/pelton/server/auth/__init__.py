"""Who a client is, and what it may do."""

from pelton.server.auth.identity import (
    Authenticator,
    Credentials,
    LoginRefusal,
    OpenDoor,
    Permissions,
    ServerUser,
    SubjectRules,
    credentials_of,
)
from pelton.server.auth.users import ConfiguredUsers

__all__ = [
    "Authenticator",
    "ConfiguredUsers",
    "Credentials",
    "LoginRefusal",
    "OpenDoor",
    "Permissions",
    "ServerUser",
    "SubjectRules",
    "credentials_of",
]
