"""What a client shows, who it turns out to be, and what it may do. Pure data.

**What a user may publish and subscribe to: subjects that are allowed, and subjects that are not. Pure.** A rule for
subscriptions may name a queue group after its subject, with wildcards: ``"jobs.* workers.*"``. It speaks of members of
such groups alone; where a rule with a group covers a subject, it decides for all groups.

nats-server is more lenient in two places, where Pelton holds to the rule as written: an allowed ``a.*`` there allows a
subscription to ``a.>``, and a denied ``a.*`` there lets ``*.b`` receive messages of ``a.b``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from pelton.server.auth.certificates import TlsPeer
from pelton.server.settings.options import GLOBAL_ACCOUNT, AllowDeny, ConnectionLimits, PermissionRules
from pelton.subjects import SubjectIndex, is_subset, matches, overlaps

AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
AUTHENTICATION_TIMEOUT: Final = "Authentication Timeout"
USER_EXPIRED: Final = "User Authentication Expired"
USER_REVOKED: Final = "User Authentication Revoked"
ACCOUNT_EXPIRED: Final = "Account Authentication Expired"
MAX_CONNECTIONS: Final = "maximum connections exceeded"
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
        """Whether a message's subject is allowed."""
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


# --- what one client may do now: its user's permissions, and the requests that it may still answer. Pure

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
        """Whether the client may subscribe."""
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
