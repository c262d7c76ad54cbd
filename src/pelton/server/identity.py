"""What a client shows, who it turns out to be, and what it may do. Pure data.

**What a user may publish and subscribe to: subjects that are allowed, and subjects that are not. Pure.** A rule for
subscriptions may name a queue group after its subject, with wildcards: ``"jobs.* workers.*"``. It speaks of members of
such groups alone; where a rule with a group covers a subject, it decides for all groups.

nats-server is more lenient in two places, where Pelton holds to the rule as written: an allowed ``a.*`` there allows a
subscription to ``a.>``, and a denied ``a.*`` there lets ``*.b`` receive messages of ``a.b``.

**From a client's TLS certificate to the user it stands for. Pure.** A certificate names its user by an e-mail address,
a host name or a URI, each an alternative name of its subject, or by the distinguished name of its subject, in this
order. TLS has verified the certificate before.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from pelton.server.settings.options import GLOBAL_ACCOUNT, AllowDeny, ConnectionLimits, PermissionRules
from pelton.subjects import SubjectIndex, is_subset, matches, overlaps
from pelton.wire import ConnectOptions

# One attribute; several joined by + are one part of a distinguished name.
_Part = frozenset[tuple[str, str]]

_SHORT: Final = {
    "commonname": "CN",
    "organizationname": "O",
    "organizationalunitname": "OU",
    "countryname": "C",
    "localityname": "L",
    "stateorprovincename": "ST",
    "streetaddress": "STREET",
    "postalcode": "POSTALCODE",
    "serialnumber": "SERIALNUMBER",
    "domaincomponent": "DC",
    "userid": "UID",
    "emailaddress": "EMAILADDRESS",
    "e": "EMAILADDRESS",
}
_ATTRIBUTE: Final = re.compile(r"\s*([A-Za-z0-9.-]+)\s*=\s*((?:[^,+;\\]|\\.)*)([,+;]|\Z)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([0-9a-fA-F]{2})|\\(.)", re.DOTALL)


class TlsPeer(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate says of its owner. ``subject`` has the parts of the distinguished name, the last one first."""

    emails: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    subject: tuple[_Part, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The alternative names, in the order in which they are tried."""
        return self.emails + self.hosts + self.uris


def peer_of(certificate: Mapping[str, Any] | None) -> TlsPeer | None:
    """Return what ``SSLSocket.getpeercert()`` says; None without a verified certificate."""
    if not certificate:
        return None
    names = [(str(kind), str(value)) for kind, value in certificate.get("subjectAltName", ())]
    parts = [frozenset((_type(kind), str(value)) for kind, value in part) for part in certificate.get("subject", ())]
    return TlsPeer(
        emails=tuple([value for kind, value in names if kind == "email"]),
        hosts=tuple([value for kind, value in names if kind == "DNS"]),
        uris=tuple([value for kind, value in names if kind == "URI"]),
        subject=tuple(reversed(parts)),
    )


def user_of_peer(peer: TlsPeer, users: Iterable[str]) -> str | None:
    """Return the name of the user that a certificate stands for, None if it is nobody's."""
    known = list(users)
    for name in peer.names:
        if name in known:
            return name
    if not peer.subject:
        return None
    wanted = Counter(peer.subject)
    # The order of the parts does not matter, but one that is as it stands is preferred.
    named = [(name, parts) for name in known if "=" in name and (parts := parts_of(name)) is not None]
    return next(
        (name for name, parts in named if parts == peer.subject),
        next((name for name, parts in named if Counter(parts) == wanted), None),
    )


def parts_of(name: str) -> tuple[_Part, ...] | None:
    """Return the parts of a distinguished name such as ``CN=ann,OU=garage``; None if it is none."""
    parts: list[_Part] = []
    part: set[tuple[str, str]] = set()
    at = 0
    while found := _ATTRIBUTE.match(name, at):
        part.add((_type(found[1]), _ESCAPED.sub(_unescape, found[2].strip())))
        at = found.end()
        if found[3] == "+":
            continue
        parts.append(frozenset(part))
        part = set()
        if not found[3]:
            return tuple(parts)
    return None


def _type(kind: str) -> str:
    return _SHORT.get(kind.lower(), kind.upper())


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]


AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
AUTHENTICATION_TIMEOUT: Final = "Authentication Timeout"
USER_EXPIRED: Final = "User Authentication Expired"
MAX_ACCOUNT_CONNECTIONS: Final = "maximum account active connections exceeded"
MAX_SUBSCRIPTIONS: Final = "maximum subscriptions exceeded"


def publish_violation(subject: str) -> str:
    """Return the text for a subject that may not be published to."""
    return f'Permissions Violation for Publish to "{subject}"'


def subscription_violation(subject: str, queue: str = "") -> str:
    """Return the text for a subject that may not be subscribed to, as a member of a queue group or alone."""
    using = f' using queue "{queue}"' if queue else ""
    return f'Permissions Violation for Subscription to "{subject}"{using}'


_UNLIMITED: Final = -1


class SubjectRules:
    """Filters that are allowed (None: all) and filters that are denied; a denial wins."""

    __slots__ = ("_allow", "_allowed", "_denied", "_deny")

    def __init__(self, allow: tuple[str, ...] | None = None, deny: tuple[str, ...] = ()) -> None:
        self._allow = None if allow is None else [_split(rule) for rule in allow]
        self._deny = [_split(rule) for rule in deny]
        # For messages; rules with queue groups deny subscriptions only.
        self._allowed = None if self._allow is None else _index([filter for filter, _ in self._allow])
        self._denied = _index([filter for filter, queue in self._deny if not queue])

    def allows(self, subject: str) -> bool:
        if self._allowed is not None and not self._allowed.match(subject):
            return False
        return not self._denied.match(subject)

    def allows_filter(self, filter: str, queue: str = "") -> bool:
        """Whether a subscription is allowed; not all of its messages may be, see :meth:`cuts`."""
        if self._allow is not None and not _is_allowed(self._allow, filter, queue):
            return False
        return not any(_speaks_of(queue, group) and _covers_loosely(denied, filter) for denied, group in self._deny)

    def cuts(self, filter: str, queue: str = "") -> bool:
        """Whether some subjects of an allowed filter are denied, so that each message has to be checked."""
        return any(_speaks_of(queue, group) and overlaps(denied, filter) for denied, group in self._deny)

    def receives(self, subject: str, queue: str = "") -> bool:
        """Whether a subscription that :meth:`cuts` receives a message."""
        if self._denied.match(subject):
            return False
        return not queue or not any(
            group and is_subset(queue, group) and matches(denied, subject) for denied, group in self._deny
        )


class Permissions:
    """The rules of a user. ``responses`` is how often a user may answer a request that it received (0: not at all,
    -1: without limit), ``response_s`` for how many seconds (0: for ever). ``rules`` is what they were written as.
    """

    __slots__ = ("publish", "response_s", "responses", "rules", "subscribe")

    def __init__(
        self,
        *,
        publish: SubjectRules | None = None,
        subscribe: SubjectRules | None = None,
        responses: int = 0,
        response_s: float = 0.0,
        rules: PermissionRules | None = None,
    ) -> None:
        self.publish: SubjectRules = publish or SubjectRules()
        self.subscribe: SubjectRules = subscribe or SubjectRules()
        self.responses: int = responses
        self.response_s: float = response_s
        self.rules: PermissionRules | None = rules


def permissions_of_rules(rules: PermissionRules | None) -> Permissions | None:
    """Return the permissions that rules of a configuration or a JWT mean; None without rules: everything."""
    if rules is None:
        return None
    answers = rules.allow_responses
    return Permissions(
        publish=_rules(rules.publish),
        subscribe=_rules(rules.subscribe),
        responses=0 if answers is None else max(answers.max_msgs, _UNLIMITED),
        response_s=0.0 if answers is None else max(answers.expires, 0.0),
        rules=rules,
    )


def _rules(said: AllowDeny) -> SubjectRules:
    return SubjectRules(said.allow, said.deny)


def _split(rule: str) -> tuple[str, str]:
    filter, _, queue = rule.partition(" ")
    return filter, queue


def _index(filters: list[str]) -> SubjectIndex[int]:
    index: SubjectIndex[int] = SubjectIndex()
    for filter in filters:
        index.insert(filter, 0)
    return index


def _is_allowed(rules: list[tuple[str, str]], filter: str, queue: str) -> bool:
    covering = [group for allowed, group in rules if is_subset(filter, allowed)]
    groups = [group for group in covering if group]
    if queue and groups:
        return any(is_subset(queue, group) for group in groups)
    return len(groups) < len(covering)


def _speaks_of(queue: str, group: str) -> bool:
    """Whether a rule, for a group of queues or for all (""), speaks of a member of ``queue`` ("" for none)."""
    return not group or (bool(queue) and is_subset(queue, group))


def _covers_loosely(denied: str, filter: str) -> bool:
    """Whether a denial covers a filter; a ``*`` covers a ``>`` in its place, as on the server."""
    return is_subset(filter, denied) or (filter.endswith(">") and is_subset(f"{filter[:-1]}-", denied))


# --- what a client shows, and who it turns out to be. Pure data


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a client shows: the fields of its ``CONNECT``, "" for those it leaves out, and what its connection says.

    ``signature`` is the nonce's, in base64. ``kind`` is a connection type, ``address`` the IP address, "" for a Unix
    socket. ``peer`` is the owner of its verified certificate.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    jwt: str = ""
    nkey: str = ""
    signature: str = ""
    nonce: str = ""
    kind: str = "STANDARD"
    address: str = ""
    peer: TlsPeer | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether the client shows nothing."""
        return not (self.user or self.password or self.token or self.jwt or self.nkey)


class ServerUser(msgspec.Struct, frozen=True, kw_only=True):
    """Who a client is: its name, its account, and what it may do (None: everything) and use.

    ``expires`` is when it has to go, in Unix seconds, None for never; ``issued_at`` is when its JWT was issued.
    """

    name: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None
    limits: ConnectionLimits = ConnectionLimits()
    expires: float | None = None
    issued_at: int = 0


class LoginRefusal(msgspec.Struct, frozen=True):
    """Why a client is not let in: ``reason`` for the log, ``text`` for the client, which learns no more than that."""

    reason: str
    text: str = AUTHORIZATION_VIOLATION


_MOST_ANSWERS = 4096


class ClientRights:
    """The rights of a client; times are seconds of one monotonic clock."""

    def __init__(self, user: ServerUser) -> None:
        self.permissions: Permissions | None = user.permissions
        self.answers: bool = self.permissions is not None and self.permissions.responses != 0
        """Whether requests have to be noted, because the client may answer them."""
        self._open: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def may_publish(self, subject: str, now: float) -> bool:
        """Whether the client may publish to a subject, or answer a request there; an answer is counted."""
        if self.permissions is None or self.permissions.publish.allows(subject):
            return True
        left, until = self._open.get(subject, (0, 0.0))
        if not left or (until and now > until):
            self._open.pop(subject, None)
            return False
        self._open[subject] = (left - 1 if left > 0 else left, until)
        return True

    def may_subscribe(self, filter: str, queue: str) -> bool:
        return self.permissions is None or self.permissions.subscribe.allows_filter(filter, queue)

    def is_cut(self, filter: str, queue: str) -> bool:
        """Whether each message of a subscription has to be checked."""
        return self.permissions is not None and self.permissions.subscribe.cuts(filter, queue)

    def may_receive(self, subject: str, queue: str) -> bool:
        """Whether a subscription that is cut receives a message."""
        return self.permissions is None or self.permissions.subscribe.receives(subject, queue)

    def expect_answer(self, reply: str, now: float) -> None:
        """Let the client answer a request that it received."""
        if self.permissions is None or not reply:
            return
        self._open.pop(reply, None)
        if len(self._open) >= _MOST_ANSWERS:
            # The oldest request has waited longest, and expires first.
            self._open.popitem(last=False)
        seconds = self.permissions.response_s
        self._open[reply] = (self.permissions.responses, now + seconds if seconds else 0.0)


# --- the port through which clients are let in: credentials become a user, or a refusal


class Authenticator(Protocol):
    """Tells who a client is.

    ``wants_nonce``: each client gets a text to sign.
    """

    @property
    def wants_nonce(self) -> bool: ...

    def is_required(self, kind: str = "STANDARD") -> bool:
        """Whether a client without credentials is refused; ``kind`` is how it connects (``WEBSOCKET``)."""

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user, or why there is none. May take time: passwords are slow to check."""

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user of a client that has shown nothing yet, if that is not required."""


def credentials_of(
    options: ConnectOptions, *, nonce: str = "", kind: str = "STANDARD", address: str = "", peer: TlsPeer | None = None
) -> Credentials:
    """Return what a client shows in its ``CONNECT`` and by its connection."""
    return Credentials(
        user=options.user or "",
        password=options.password or "",
        token=options.auth_token or "",
        jwt=options.jwt or "",
        nkey=options.nkey or "",
        signature=options.sig or "",
        nonce=nonce,
        kind=kind,
        address=address,
        peer=peer,
    )
