"""Who a client is, and what it may do."""

from pelton.server.auth.authenticator import Authenticator, OpenDoor, credentials_of
from pelton.server.auth.configured import ConfiguredUsers
from pelton.server.auth.identity import Credentials, LoginRefusal, Permissions, ServerUser, SubjectRules

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
