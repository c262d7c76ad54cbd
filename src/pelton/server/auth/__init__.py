"""Who a client is, and what it may do."""

from pelton.server.auth.authenticator import Authenticator, Credentials, OpenDoor, ServerUser
from pelton.server.auth.permissions import Permissions, SubjectRules

__all__ = ["Authenticator", "Credentials", "OpenDoor", "Permissions", "ServerUser", "SubjectRules"]
