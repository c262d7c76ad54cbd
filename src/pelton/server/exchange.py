"""What accounts offer each other: services that are requested, and streams that are received. Pure.

Design: an account never sees another's subjects. It sees its own, and what it imports of others appears among them
under local names. A *service* is an import in the direction of the requests: what the importer publishes at the local
name is a message of the exporter at its name, and the answer finds its way back through a subject that is made for this
request alone (:class:`ServiceReplies`). A *stream* is an import in the direction of the messages: what the exporter
publishes appears in the importer under the local name. Streams are not passed on from account to account; services are,
because a request in the exporter may meet an import of its own there, so imports of services must form no cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from pelton.api import ConfigError
from pelton.server.settings.options import AccountConfig, ExportConfig, ImportConfig, ResponseType
from pelton.subjects import SubjectIndex, Transform, is_subset, overlaps

_DEFAULT_THRESHOLD_S: Final = 120.0
_MOST_WAITING: Final = 65_536
REPLY_PREFIX: Final = "_R_."


class ServiceRoute(NamedTuple):
    """Where a request goes: the exporting account and its subject, and how it is answered.

    ``threshold_s`` is for how long an answer, or the next one, is waited for.
    """

    account: str
    subject: str
    response_type: ResponseType = "Singleton"
    threshold_s: float = _DEFAULT_THRESHOLD_S
    share: bool = False
    allow_trace: bool = False


class StreamRoute(NamedTuple):
    """Where a message appears, too: the importing account, and the subject there."""

    account: str
    subject: str
    allow_trace: bool = False


class _Service(NamedTuple):
    account: str
    transform: Transform
    response_type: ResponseType
    threshold_s: float
    share: bool
    allow_trace: bool


class _Stream(NamedTuple):
    account: str
    transform: Transform
    allow_trace: bool


class AccountExchange:
    """The imports of all accounts. Raises ConfigError if they contradict each other."""

    def __init__(self, accounts: Iterable[AccountConfig]) -> None:
        self._services: defaultdict[str, SubjectIndex[_Service]] = defaultdict(SubjectIndex)
        self._origins: defaultdict[str, SubjectIndex[_Stream]] = defaultdict(SubjectIndex)
        self._streams: defaultdict[str, SubjectIndex[_Stream]] = defaultdict(SubjectIndex)
        named = {account.name: account for account in accounts}
        for account in named.values():
            self._check(account, named)
            for imported in account.imports:
                try:
                    self._add(account.name, imported, named[imported.account].exports)
                except ValueError as error:
                    raise ConfigError(
                        f"account {account.name!r} cannot import {imported.subject!r} as {imported.to!r}: {error}"
                    ) from None
        _check_cycles(named)

    def _check(self, account: AccountConfig, named: Mapping[str, AccountConfig]) -> None:
        seen: set[tuple[str, str, str]] = set()
        for imported in account.imports:
            if imported.account not in named:
                raise ConfigError(f"account {account.name!r} imports from {imported.account!r}, which is no account")
            if imported.kind == "service":
                key = ("service", "", local_of(imported))
            else:
                key = ("stream", imported.account, imported.subject)
            if key in seen:
                raise ConfigError(f"account {account.name!r} imports the {imported.kind} {key[2]!r} twice")
            seen.add(key)

    def _add(self, importer: str, imported: ImportConfig, exports: Iterable[ExportConfig]) -> None:
        local = local_of(imported)
        if imported.kind == "stream":
            renamed = Transform(imported.subject, _numbered(imported), _no_draw)
            stream = _Stream(importer, renamed, imported.allow_trace)
            self._streams[imported.account].insert(imported.subject, stream)
            with suppress(ConfigError):
                origin = _Stream(imported.account, Transform(local, _ordered(imported), _no_draw), False)
                self._origins[importer].insert(local, origin)
            return
        export = next(each for each in exports if each.kind == "service" and is_subset(imported.subject, each.subject))
        service = _Service(
            imported.account,
            Transform(local, _ordered(imported), _no_draw),
            export.response_type,
            export.response_threshold or _DEFAULT_THRESHOLD_S,
            imported.share,
            export.allow_trace,
        )
        self._services[importer].insert(local, service)

    def services(self, account: str, subject: str) -> tuple[ServiceRoute, ...]:
        """Return where a message that is published in an account is a request, too."""
        if account not in self._services:
            return ()
        found = []
        for service in self._services[account].match(subject):
            if (there := service.transform.apply(subject)) is not None:
                found.append(ServiceRoute(service.account, there, *service[2:]))
        return tuple(found)

    def streams(self, account: str, subject: str) -> tuple[StreamRoute, ...]:
        """Return where a message that is published in an account appears, too."""
        return _routes(self._streams, account, subject)

    def origins(self, account: str, subject: str) -> tuple[StreamRoute, ...]:
        """Return the accounts whose messages appear under a subject of an account, and their subject there."""
        return _routes(self._origins, account, subject)


def _routes(index: Mapping[str, SubjectIndex[_Stream]], account: str, subject: str) -> tuple[StreamRoute, ...]:
    if account not in index:
        return ()
    found = []
    for stream in index[account].match(subject):
        if (there := stream.transform.apply(subject)) is not None:
            found.append(StreamRoute(stream.account, there, stream.allow_trace))
    return tuple(found)


def local_of(imported: ImportConfig) -> str:
    """Return the filter of an import's local names: ``to``, with a ``*`` for each reference (``$1``) in it."""
    tokens = (imported.to or imported.subject).split(".")
    return ".".join(["*" if _reference(token) else token for token in tokens])


def _reference(token: str) -> int:
    """Return the number of a reference such as ``$2``, 0 if a token is none."""
    return int(token[1:]) if token.startswith("$") and token[1:].isdecimal() else 0


def _references(imported: ImportConfig) -> list[int]:
    """Return for each wildcard of the local name which wildcard of the exported subject it is, from 1."""
    tokens = [token for token in (imported.to or imported.subject).split(".") if token == "*" or _reference(token)]
    return [_reference(token) or number for number, token in enumerate(tokens, start=1)]


def _numbered(imported: ImportConfig) -> str:
    """Return a stream's local name as the destination of a transform from the exported subject."""
    return _with_references(imported.to or imported.subject, _references(imported))


def _ordered(imported: ImportConfig) -> str:
    """Return a service's exported subject as the destination of a transform from the local name."""
    order = _references(imported)
    number = imported.subject.split(".").count("*")
    if sorted(order) != list(range(1, number + 1)):
        raise ConfigError("the local name must have each wildcard of the subject once")
    return _with_references(imported.subject, [order.index(each) + 1 for each in range(1, number + 1)])


def _with_references(filter: str, numbers: list[int]) -> str:
    left = iter(numbers)
    tokens = [f"${next(left)}" if token == "*" or _reference(token) else token for token in filter.split(".")]
    return ".".join(tokens)


def _check_cycles(named: Mapping[str, AccountConfig]) -> None:
    """Raise ConfigError if a request could come back to an account that passed it on."""
    for account in named.values():
        for imported in account.imports:
            if imported.kind == "service" and _leads_to(account.name, imported, named, frozenset()):
                raise ConfigError(f"the imports of service {imported.subject!r} by {account.name!r} form a cycle")


def _leads_to(
    account: str, imported: ImportConfig, named: Mapping[str, AccountConfig], seen: frozenset[tuple[str, str]]
) -> bool:
    if imported.account == account:
        return True
    if (imported.account, imported.subject) in seen:
        return False
    seen |= {(imported.account, imported.subject)}
    return any(
        each.kind == "service" and overlaps(local_of(each), imported.subject) and _leads_to(account, each, named, seen)
        for each in named[imported.account].imports
    )


def _no_draw(below: int) -> int:
    raise ConfigError("a name of an import cannot be random")


class _OpenReply(NamedTuple):
    account: str
    reply: str
    route: ServiceRoute
    expires: float


class ServiceReplies:
    """The requests to services that wait for answers. ``new_id`` makes unique ids.

    Of an account, ``most`` may wait: the oldest gives way, as if it had not been answered in time.
    """

    def __init__(self, new_id: Callable[[], str], most: int = _MOST_WAITING) -> None:
        self._new_id = new_id
        self._most = most
        self._open: dict[str, _OpenReply] = {}
        # The same by the account that asked, the oldest first.
        self._asked: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, subject: str) -> bool:
        return subject in self._open

    def open(self, account: str, reply: str, route: ServiceRoute, now: float) -> str:
        """Return the subject at which the exporting account answers a request of ``account``; ``now`` in seconds."""
        if not reply:
            return ""
        asked = self._asked[account]
        if len(asked) >= self._most:
            self.forget(next(iter(asked)))
        subject = f"{REPLY_PREFIX}{self._new_id()}"
        self._open[subject] = _OpenReply(account, reply, route, now + route.threshold_s)
        asked[subject] = None
        return subject

    def where(self, subject: str) -> StreamRoute | None:
        """Return where answers at a subject go; None if nobody waits for one."""
        waiting = self._open.get(subject)
        return None if waiting is None else StreamRoute(waiting.account, waiting.reply)

    def take(self, account: str, subject: str, size: int, now: float) -> StreamRoute | None:
        """Return where an answer of ``size`` bytes goes that an account published; None if nobody waits for it."""
        waiting = self._open.get(subject)
        if waiting is None or waiting.route.account != account:
            return None
        kind = waiting.route.response_type
        if waiting.expires < now or kind == "Singleton" or (kind == "Chunked" and size == 0):
            self.forget(subject)
        else:
            self._open[subject] = waiting._replace(expires=now + waiting.route.threshold_s)
        return None if waiting.expires < now else StreamRoute(waiting.account, waiting.reply)

    def forget(self, subject: str) -> None:
        """Wait for this answer no more. Idempotent."""
        gone = self._open.pop(subject, None)
        if gone is not None:
            del self._asked[gone.account][subject]
            if not self._asked[gone.account]:
                del self._asked[gone.account]

    def forget_expired(self, now: float) -> None:
        """Forget the requests that were not answered in time."""
        for subject in [subject for subject, waiting in self._open.items() if waiting.expires < now]:
            self.forget(subject)
