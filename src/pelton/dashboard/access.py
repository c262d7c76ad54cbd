"""Who may look, who may act, who may administer. Pure: requests in, verdicts out.

Who gives a token gets a cookie that stands for it. A form carries a second token, made from a cookie of its visitor: a
page elsewhere can send the form, but knows neither the cookie nor what is made from it.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple, cast, get_args

import msgspec

from pelton.api import ConfigError

VISITOR: Final = "pelton_visitor"
SHORTEST: Final = 16
Role = Literal["look", "act", "administer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
_OWN_SITE: Final = ("same-origin", "none")


class AccessToken(msgspec.Struct, frozen=True):
    """What a viewer gives to be let in. Raises ConfigError for a short secret or a role that does not exist."""

    name: str
    """Who that is, for the audit."""
    role: Role
    """``look`` sees everything; ``act`` also pauses, resumes, cancels, retries and publishes; ``administer`` also
    purges, discards and sets limits."""
    secret: str
    """The token itself: at least 16 characters."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a token that can be guessed, or whose role does not exist."""
        if len(self.secret) < SHORTEST:
            raise ConfigError(
                f"dashboard: the token of {self.name!r} has {len(self.secret)} characters; give at least {SHORTEST}"
            )
        if self.role not in ROLES:
            raise ConfigError(f"dashboard: the role of {self.name!r} is {self.role!r}; give one of {', '.join(ROLES)}")

    def __repr__(self) -> str:
        return f"AccessToken(name={self.name!r}, role={self.role!r})"


def tokens_of(text: str) -> list[AccessToken]:
    """Return the tokens of a file: ``NAME ROLE TOKEN`` a line; ``#`` begins a comment. Raises ConfigError."""
    tokens: list[AccessToken] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 3:
            raise ConfigError(f"dashboard: line {number} of the tokens is not NAME ROLE TOKEN")
        tokens.append(AccessToken(words[0], cast(Role, words[1]), words[2]))
    if len({one.secret for one in tokens}) < len(tokens):
        raise ConfigError("dashboard: two names have the same token")
    return tokens


class Viewer(NamedTuple):
    """Who looks at a page, and what they may do."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether the viewer's role covers another one."""
        return ROLES.index(self.role) >= ROLES.index(role)


class DashboardDoor:
    """The rules of one dashboard: its tokens, if any; whether actions exist; which names of hosts it answers to.

    ``secret`` is random and is forgotten with the process.
    """

    def __init__(self, secret: bytes, *, tokens: Collection[AccessToken], actions: bool, hosts: frozenset[str]) -> None:
        self._secret = secret
        self._tokens = tuple(tokens)
        self._hosts = hosts
        self.actions = actions
        self.session_cookie: str = f"pelton_session_{self._token_of('cookie')[:8]}"

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for a token."""
        return not self._tokens

    def session_of(self, given: str) -> str | None:
        """Return the value of the cookie for who gave a token; None if it is none."""
        known = [one for one in self._tokens if _is_same(given, one.secret)]
        return self._token_of(f"session {known[0].secret}") if known else None

    def knows_host(self, host: str) -> bool:
        """Whether a request came for a name of this host: another site's name may lead here, too (DNS rebinding)."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return not self._hosts or name.lower() in self._hosts

    def viewer(self, authorization: str, cookies: Mapping[str, str]) -> Viewer | None:
        """Return who sent a request; None if they may not look."""
        if self.is_open:
            return Viewer("", "administer" if self.actions else "look")
        session = cookies.get(self.session_cookie, "")
        if (bearer := bearer_of(authorization)) is not None and (of_bearer := self.session_of(bearer)) is not None:
            session = of_bearer
        for token in self._tokens:
            if _is_same(session, self._token_of(f"session {token.secret}")):
                return Viewer(token.name, token.role if self.actions else "look")
        return None

    def form_token(self, visitor: str) -> str:
        return self._token_of(f"form {visitor}")

    def is_own_form(self, visitor: str, given: str, site: str) -> bool:
        """Whether a form is the visitor's own: ``site`` is what the browser says of where it was sent from."""
        if not visitor or (site and site not in _OWN_SITE):
            return False
        return _is_same(given, self.form_token(visitor))

    def _token_of(self, purpose: str) -> str:
        return hmac.new(self._secret, purpose.encode(), "sha256").hexdigest()


def bearer_of(authorization: str) -> str | None:
    """Return the token of an ``Authorization`` header; None if it has none."""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


_TRIES: Final = 10
_FORGIVEN_S: Final = 60.0
_ADDRESSES: Final = 1024


class LoginThrottle:
    """Refuses an address for a minute after ten wrong tokens. ``now`` is in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def is_full(self, address: str, now: float) -> bool:
        """Whether an address has to wait before its next try."""
        tries, last = self._wrong.get(address, (0, now))
        return tries >= _TRIES and now - last < _FORGIVEN_S

    def note_wrong(self, address: str, now: float) -> None:
        """Count a wrong token. Of many addresses, the oldest are forgotten."""
        tries, last = self._wrong.pop(address, (0, now))
        self._wrong[address] = (tries + 1 if now - last < _FORGIVEN_S else 1), now
        while len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)
