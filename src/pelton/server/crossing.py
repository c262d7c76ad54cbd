"""What accounts offer each other, how messages are carried from account to account, and where they are traced.

An account never sees another's subjects. It sees its own, and what it imports of others appears among them under local
names. A *service* is an import in the direction of the requests: what the importer publishes at the local name is a
message of the exporter at its name, and the answer finds its way back through a subject that is made for this request
alone (:class:`ServiceReplies`). A *stream* is an import in the direction of the messages: what the exporter publishes
appears in the importer under the local name. Streams are not passed on from account to account; services are, because a
request in the exporter may meet an import of its own there, so imports of services must form no cycle.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from pelton.api import ConfigError, Incoming, headers, rfc3339
from pelton.api.json_values import UNREADABLE
from pelton.api.times import enc_hook
from pelton.runtime import Clock, Random
from pelton.server.connection import AccountPort, ClientConnection, ServerHost
from pelton.server.router import ClientSubscription, Targets
from pelton.server.settings.options import AccountConfig, ExportConfig, ImportConfig, ResponseType, TraceConfig
from pelton.server.store_link import info_of
from pelton.subjects import SubjectIndex, Transform, is_subject, is_subset, overlaps

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


_Route = TypeVar("_Route", ServiceRoute, StreamRoute)
_Imports = SubjectIndex[tuple[_Route, Transform]]
"""By a filter of local names, or of a stream's own: where they lead, and how the subject there is made."""


class AccountExchange:
    """The imports of all accounts. Raises ConfigError if they contradict each other."""

    def __init__(self, accounts: Iterable[AccountConfig]) -> None:
        self._services: defaultdict[str, _Imports[ServiceRoute]] = defaultdict(SubjectIndex)
        self._origins: defaultdict[str, _Imports[StreamRoute]] = defaultdict(SubjectIndex)
        self._streams: defaultdict[str, _Imports[StreamRoute]] = defaultdict(SubjectIndex)
        named = {account.name: account for account in accounts}
        self._imports = {account.name: account.imports for account in named.values()}
        self._taken: defaultdict[str, set[str]] = defaultdict(set)
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
            renamed = Transform(imported.subject, _with_numbers(imported), _no_draw)
            stream = StreamRoute(importer, "", imported.allow_trace)
            self._streams[imported.account].insert(imported.subject, (stream, renamed))
            self._taken[imported.account].add(imported.subject)
            with suppress(ConfigError):
                back = Transform(local, _in_order(imported), _no_draw)
                self._origins[importer].insert(local, (StreamRoute(imported.account, ""), back))
            return
        export = next(each for each in exports if each.kind == "service" and is_subset(imported.subject, each.subject))
        service = ServiceRoute(
            imported.account,
            "",
            export.response_type,
            export.response_threshold or _DEFAULT_THRESHOLD_S,
            imported.share,
            export.allow_trace,
        )
        self._services[importer].insert(local, (service, Transform(local, _in_order(imported), _no_draw)))

    def interest(self, account: str) -> set[str]:
        """Return the filters of what other accounts take of an account: services it imports, its streams, answers."""
        services = (local_of(one) for one in self._imports.get(account, ()) if one.kind == "service")
        return {*services, *self._taken.get(account, ()), f"{REPLY_PREFIX}>"}

    def services(self, account: str, subject: str) -> tuple[ServiceRoute, ...]:
        """Return the service imports that a subject published in ``account`` reaches, with the subject there."""
        return _routes(self._services, account, subject)

    def streams(self, account: str, subject: str) -> tuple[StreamRoute, ...]:
        """Return the stream imports in which a subject published in ``account`` appears, with the subject there."""
        return _routes(self._streams, account, subject)

    def origins(self, account: str, subject: str) -> tuple[StreamRoute, ...]:
        """Return the accounts whose messages appear under a subject of an account, and their subject there."""
        return _routes(self._origins, account, subject)


def _routes(index: Mapping[str, _Imports[_Route]], account: str, subject: str) -> tuple[_Route, ...]:
    if account not in index:
        return ()
    found = [(route, transform.apply(subject)) for route, transform in index[account].match(subject)]
    return tuple([route._replace(subject=there) for route, there in found if there is not None])


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


def _with_numbers(imported: ImportConfig) -> str:
    """Return a stream's local name as the destination of a transform from the exported subject."""
    return _with_references(imported.to or imported.subject, _references(imported))


def _in_order(imported: ImportConfig) -> str:
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


# --- tells where a message goes, if its headers ask for it (ADR-41): ``nats trace``

TRACE: Final = b"Nats-Trace-Dest"
_DESTINATION: Final = "Nats-Trace-Dest"
_DISABLED: Final = "trace disabled"
_ONLY: Final = "Nats-Trace-Only"
_PARENT: Final = "traceparent"
_TRUE: Final = frozenset({"1", "true", "on"})


class TraceRequest(NamedTuple):
    """Where a message is traced to; with ``only`` it is neither delivered nor stored."""

    destination: str
    only: bool


def without_trace(block: bytes, *, is_traced: bool = False) -> bytes:
    """Return the headers as a stream keeps them: who gets the message from there does not trace it again."""
    is_asked = is_traced or bool(headers.first(block, _DESTINATION))
    return headers.with_header(block, _DESTINATION, _DISABLED) if is_asked else block


class CrossedTrace(NamedTuple):
    """Where a message is of another account, too, and whom it reaches there, if that is to be told."""

    route: ServiceRoute | StreamRoute
    receivers: Sequence[ClientSubscription] = ()
    stream: str = ""


class MessageTracer:
    """Describes messages of one server."""

    def __init__(self, server: ServerHost, random: Random) -> None:
        self._server = server
        self._random = random

    def request_of(self, client: ClientConnection, block: bytes, account: TraceConfig) -> TraceRequest | None:
        """Return where a client's message is traced to: by its headers, or where its account wants to see traces."""
        if destination := headers.first(block, _DESTINATION):
            is_only = (headers.first(block, _ONLY) or "").lower() in _TRUE
            is_allowed = is_subject(destination) and client.may_publish(destination)
            return TraceRequest(destination, is_only) if is_allowed else None
        if account.destination and _is_sampled(block) and self._random.randrange(100) < account.sampling:
            return TraceRequest(account.destination, only=False)
        return None

    def describe(
        self,
        client: ClientConnection,
        subject: str,
        block: bytes,
        data: bytes,
        targets: Targets,
        stream: str,
        crossed: Iterable[CrossedTrace],
    ) -> bytes:
        """Return the event that tells from whom a message came, and whom it reaches: clients, and maybe a stream.

        Of other accounts it tells that they are reached (``crossed``), and whom of them if they allow that.
        """
        now = rfc3339(self._server.clock.now())
        services: list[dict[str, Any]] = []
        streams: list[dict[str, Any]] = []
        for one in crossed:
            if isinstance(one.route, ServiceRoute):
                services.append({"type": "si", "acc": one.route.account, "from": subject, "to": one.route.subject})
                services += _events_of(one, one.route.subject)
            else:
                streams.append({"type": "se", "acc": one.route.account, "to": one.route.subject})
                streams += _events_of(one, one.route.subject)
        events = [
            {"type": "in", **_names_of(client), "acc": client.account_name, "subj": subject},
            *services,
            *map(_egress, [*targets.plain, *(group[0] for group in targets.groups)]),
            *streams,
            *([{"type": "js", "stream": stream, "subject": subject}] if stream else []),
        ]
        timed = [{"type": event.pop("type"), "ts": now, **event} for event in events]
        request = {"header": _to_json(block), "msgsize": len(block) + len(data)}
        return msgspec.json.encode({"server": self._server.facts(), "request": request, "events": timed})


def _is_sampled(block: bytes) -> bool:
    """Whether a message is part of a trace (``traceparent`` of W3C) that is recorded."""
    if _PARENT.encode() not in block.lower():
        return False
    found = next((values[0] for name, values in _to_json(block).items() if name.lower() == _PARENT), "")
    pieces = found.split("-")
    try:
        return len(pieces) == 4 and len(pieces[3]) == 2 and bool(int(pieces[3], 16) & 1)
    except ValueError:
        return False


def _events_of(crossed: CrossedTrace, subject: str) -> list[dict[str, Any]]:
    account = crossed.route.account
    found = [{**_egress(one), "acc": account} for one in crossed.receivers]
    return found + ([{"type": "js", "stream": crossed.stream, "subject": subject}] if crossed.stream else [])


def _egress(one: ClientSubscription) -> dict[str, Any]:
    queue = {"queue": one.queue} if one.queue else {}
    return {"type": "eg", **_names_of(one.client), "sub": one.subject, **queue}


def _to_json(block: bytes) -> dict[str, list[str]]:
    """Return the headers as JSON can show them; none if they are malformed."""
    try:
        found = headers.decode(block.decode("utf-8", "replace").encode())
    except ConfigError:
        return {}
    return {name: list(found.get_all(name)) for name in found}


def _names_of(client: Any) -> dict[str, Any]:
    """Return what names a client; ``kind`` 0 is one, and no other server."""
    name = client.options.name
    return {"kind": 0, "cid": client.number} | ({"name": name} if name else {})


# --- carries messages from account to account, where an import says so

REQUEST_INFO: Final = "Nats-Request-Info"
# However a client may have written it, also several times, and with the line ends that parsers of headers take.
_FORGED: Final = re.compile(rb"^nats-request-info[ \t]*:[^\n]*\n?", re.IGNORECASE | re.MULTILINE)


class AccountCrossing:
    """The ways between the accounts of a server, as ``exchange`` says, which may be replaced."""

    def __init__(
        self,
        exchange: AccountExchange,
        accounts: Mapping[str, AccountPort],
        clock: Clock,
        new_id: Callable[[], str],
        server: str,
    ) -> None:
        self.exchange: AccountExchange = exchange
        self._accounts = accounts
        self._clock = clock
        self._server = server
        self._replies = ServiceReplies(new_id)

    def pass_on(
        self,
        account: str,
        client: ClientConnection,
        subject: str,
        reply: str,
        block: bytes | None,
        data: bytes,
        trace: TraceRequest | None,
    ) -> bool:
        """Pass on what was published in an account to those that import it; return whether somebody takes it."""
        taken = False
        for stream in self.exchange.streams(account, subject):
            importer = self._accounts[stream.account]
            taken |= importer.pass_on(client, stream.subject, reply, block, data, is_imported=True)
        for service in self.exchange.services(account, subject):
            there = self._replies.open(account, reply, service, self._clock.monotonic())
            is_traced = trace is not None
            untraced = without_trace(block, is_traced=is_traced) if block and (is_traced or TRACE in block) else block
            told = self._with_info(client, account, untraced, share=service.share)
            if self._accounts[service.account].pass_on(client, service.subject, there, told, data, is_asked=True):
                taken = True
            else:
                # Nobody will answer.
                self._replies.forget(there)
        return taken

    def trace(self, account: str, subject: str) -> list[CrossedTrace]:
        """Tell where a message that is published in an account goes beside it."""
        found = []
        for service in self.exchange.services(account, subject):
            targets, stream = self._accounts[service.account].receivers_of(service.subject)
            receivers = [*targets.plain, *(group[0] for group in targets.groups)]
            found.append(CrossedTrace(service, receivers, stream) if service.allow_trace else CrossedTrace(service))
        for imported in self.exchange.streams(account, subject):
            targets = self._accounts[imported.account].router.targets(imported.subject)
            for one in [*targets.plain, *(group[0] for group in targets.groups)]:
                found.append(CrossedTrace(imported, [one] if imported.allow_trace else ()))
        return found

    def _with_info(self, client: ClientConnection, account: str, block: bytes | None, *, share: bool) -> bytes:
        """Return the headers of a request with what the server says of its client, and nobody else.

        As on NATS: its account, and all that is known if the import has ``share``. A service that is asked by way of
        another account gets what the first one got.
        """
        user, info = client.user, dict[str, Any]()
        if user is not None and user.account != account and block:
            try:
                info = {**msgspec.json.decode(headers.first(block, REQUEST_INFO) or "", type=dict), "service": account}
            except UNREADABLE:
                info = {}
        if not info:
            known = msgspec.structs.replace(info_of(client, self._clock), server=self._server)
            shown: dict[str, Any] = msgspec.to_builtins(known, enc_hook=enc_hook)
            info = {name: value for name, value in shown.items() if share or name in ("acc", "rtt")}
        clean = _FORGED.sub(b"", block).rstrip(b"\r\n") + b"\r\n\r\n" if block else None
        return headers.with_value(clean, REQUEST_INFO, msgspec.json.encode(info).decode())

    def awaits(self, subject: str) -> bool:
        """Whether a request waits for an answer at this subject."""
        return subject in self._replies

    def subscriptions(self, account: str, subject: str) -> list[ClientSubscription]:
        """Return those of other accounts' clients at the subject under which one of an account appears there."""
        return [
            one
            for stream in self.exchange.streams(account, subject)
            for one in self._accounts[stream.account].router.subscriptions(stream.subject)
            if one.subject == stream.subject and not one.queue
        ]

    def push(self, account: str, route: str, message: Incoming) -> None:
        """Pass on a message that a push consumer of an account delivers to ``route``."""
        for stream in self.exchange.streams(account, route):
            there = self._accounts[stream.account]
            there.send(stream.subject, message.subject, message.reply, message.headers, message.data)

    def on_subscription(self, account: str, subject: str) -> None:
        """Let push consumers of other accounts begin or end: their deliver subject may be one of this account's."""
        for origin in self.exchange.origins(account, subject):
            self._accounts[origin.account].look_at_push(origin.subject)

    def has_room(self, subject: str) -> bool:
        """Whether the client that waits for answers at this subject keeps up."""
        back = self._replies.where(subject)
        there = None if back is None else self._accounts.get(back.account)
        # An account may not be served any more.
        return back is not None and there is not None and there.has_room_for(back.subject)

    def poke(self) -> None:
        """Let the consumers of all accounts continue: a client reads again that may get messages of another account."""
        for account in self._accounts.values():
            account.poke()

    def answer(self, account: str, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> bool:
        """Pass an answer back to the account of its request; return False if none waits for it."""
        size = len(data) + (len(block) if block else 0)
        back = self._replies.take(account, route, size, self._clock.monotonic())
        if back is None:
            return False
        there = self._accounts.get(back.account)
        if there is None:
            # It is not served any more.
            return True
        if route == subject and not reply:
            there.answer(back.subject, block, data)
        else:
            # A message of a stream keeps its own subject.
            there.send(back.subject, back.subject if route == subject else subject, reply, block, data)
        return True

    def look(self) -> None:
        """Forget the requests that nobody has answered."""
        self._replies.forget_expired(self._clock.monotonic())


def is_answer(subject: str) -> bool:
    """Whether a subject was made for the answer to a request of another account."""
    return subject.startswith(REPLY_PREFIX)
