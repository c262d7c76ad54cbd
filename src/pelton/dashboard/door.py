"""Who may look, and who may act. Pure: requests in, verdicts out.

Who gives the token gets a cookie that stands for it. A form carries a second token, made from a cookie of its visitor:
a page elsewhere can send the form, but knows neither the cookie nor what is made from it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from pelton.api import ConfigError

VISITOR: Final = "pelton_visitor"
SHORTEST: Final = 16
_OWN_SITE: Final = ("same-origin", "none")


class DashboardDoor:
    """The rules of one dashboard: its token, empty for none; whether actions exist; which names of hosts it answers to.

    ``secret`` is random and is forgotten with the process. Raises ConfigError for a token that can be guessed.
    """

    def __init__(self, secret: bytes, *, token: str, actions: bool, hosts: frozenset[str]) -> None:
        if token and len(token) < SHORTEST:
            raise ConfigError(f"dashboard: the token has {len(token)} characters; give at least {SHORTEST}")
        self._secret = secret
        self._token = token
        self._hosts = hosts
        self.actions = actions
        self.session_cookie: str = f"pelton_session_{self._made('cookie')[:8]}"

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for a token."""
        return not self._token

    @property
    def session(self) -> str:
        """The value of the cookie of those who gave the token."""
        return self._made("session")

    def knows_host(self, host: str) -> bool:
        """Whether a request came for a name of this host: another site's name may lead here, too (DNS rebinding)."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return not self._hosts or name.lower() in self._hosts

    def admits(self, authorization: str, cookies: Mapping[str, str]) -> bool:
        """Whether a request may look."""
        if self.is_open:
            return True
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return _same(cookies.get(self.session_cookie, ""), self.session)

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        return bool(self._token) and _same(given, self._token)

    def form_token(self, visitor: str) -> str:
        """Return the token of the forms of a visitor."""
        return self._made(f"form {visitor}")

    def may_act(self, visitor: str, given: str, site: str) -> bool:
        """Whether a form is the visitor's own: ``site`` is what the browser says of where it was sent from."""
        if not self.actions or not visitor or (site and site not in _OWN_SITE):
            return False
        return _same(given, self.form_token(visitor))

    def _made(self, purpose: str) -> str:
        return hmac.new(self._secret, purpose.encode(), "sha256").hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
