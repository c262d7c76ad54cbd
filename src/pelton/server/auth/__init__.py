"""Who a client is, and what it may do."""

from pelton.server.auth.identity import Authenticator as Authenticator
from pelton.server.auth.identity import Credentials as Credentials
from pelton.server.auth.identity import LoginRefusal as LoginRefusal
from pelton.server.auth.identity import Permissions as Permissions
from pelton.server.auth.identity import ServerUser as ServerUser
from pelton.server.auth.identity import SubjectRules as SubjectRules
from pelton.server.auth.identity import credentials_of as credentials_of
from pelton.server.auth.users import ConfiguredUsers as ConfiguredUsers
