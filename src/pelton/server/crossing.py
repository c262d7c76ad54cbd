"""Carries messages from account to account, where an import says so; :mod:`pelton.server.exchange` says where."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from pelton.api import Incoming, headers
from pelton.api.durations import enc_hook
from pelton.api.json_values import UNREADABLE
from pelton.runtime import Clock
from pelton.server.exchange import REPLY_PREFIX, AccountExchange, ServiceReplies
from pelton.server.jetstream.link import info_of
from pelton.server.ports import Client
from pelton.server.router import ClientSubscription, Router, Targets
from pelton.server.tracing import TRACE, CrossedTrace, TraceRequest, without_trace

REQUEST_INFO: Final = "Nats-Request-Info"
# However a client may have written it, also several times, and with the line ends that parsers of headers take.
_FORGED: Final = re.compile(rb"^nats-request-info[ \t]*:[^\n]*\n?", re.IGNORECASE | re.MULTILINE)


class CrossedAccount(Protocol):
    """An account at the end of a way."""

    name: str
    router: Router

    def pass_on(
        self,
        client: Client,
        subject: str,
        reply: str,
        block: bytes | None,
        data: bytes,
        *,
        is_imported: bool = False,
        is_asked: bool = False,
    ) -> bool:
        """Pass on a message that a client of another account published; return whether somebody takes it.

        It is of a stream that is imported, or of a service that is asked.
        """
        ...

    def reached(self, subject: str) -> tuple[Targets, str]:
        """Return which clients get a message, and the stream that stores it, or an empty text."""
        ...

    def send(self, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> int: ...
    def answer(self, reply: str, block: bytes | None, data: bytes) -> None: ...
    def has_room_for(self, subject: str) -> bool: ...
    def poke(self) -> None: ...
    def look_at_push(self, subject: str) -> None: ...


class AccountCrossing:
    """The ways between the accounts of a server, as ``exchange`` says, which may be replaced."""

    def __init__(
        self,
        exchange: AccountExchange,
        accounts: Mapping[str, CrossedAccount],
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
        client: Client,
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
            targets, stream = self._accounts[service.account].reached(service.subject)
            receivers = [*targets.plain, *(group[0] for group in targets.groups)]
            found.append(CrossedTrace(service, receivers, stream) if service.allow_trace else CrossedTrace(service))
        for imported in self.exchange.streams(account, subject):
            targets = self._accounts[imported.account].router.targets(imported.subject)
            for one in [*targets.plain, *(group[0] for group in targets.groups)]:
                found.append(CrossedTrace(imported, [one] if imported.allow_trace else ()))
        return found

    def _with_info(self, client: Client, account: str, block: bytes | None, *, share: bool) -> bytes:
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

    def subscribed(self, account: str, subject: str) -> None:
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
