"""How the parts of a server see each other: a client, its account, the server itself, and services on subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from pelton.runtime import Clock
from pelton.server.accounts import AccountUsage
from pelton.server.auth import Authenticator, ServerUser
from pelton.server.reading import RoundEnd, SharedBuffer
from pelton.server.router import ClientSubscription, Receiver
from pelton.server.settings import ServerSettings
from pelton.wire import Command, ConnectOptions, KnownLines, ServerHello


class Client(Receiver, Protocol):
    """A connected client; ``number`` names it, ``peer`` is its address. ``is_bridged``: it comes by WebSocket."""

    number: int
    peer: str
    is_bridged: bool
    options: ConnectOptions
    user: ServerUser | None
    in_msgs: int
    in_bytes: int
    started: float
    rtt: float | None

    @property
    def kind(self) -> str: ...
    @property
    def account_name(self) -> str: ...
    @property
    def is_introduced(self) -> bool: ...
    @property
    def subscription_list(self) -> list[ClientSubscription]: ...
    @property
    def is_held(self) -> bool: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def write(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def look(self, now: float) -> None: ...
    def may_publish(self, subject: str) -> bool: ...
    def refuse(self, text: str) -> None: ...
    def close(self, reason: str) -> None: ...


class Published(NamedTuple):
    """A message that a client published."""

    client: Client
    subject: str
    reply: str
    block: bytes | None
    data: bytes


class SubjectService(Protocol):
    """Answers messages on some subjects in place of a client."""

    def take(self, message: Published) -> bool:
        """Answer a message, now or later; return False if nobody does, and it is to be treated as any other."""
        ...


class AccountPort(Protocol):
    """An account, for its clients. ``is_settled``: other processes know all subscriptions of a client."""

    name: str
    usage: AccountUsage

    def is_settled(self, client: Client) -> bool: ...
    def on_settled(self, call: Callable[[], None]) -> None: ...
    def join(self, client: Client) -> None: ...
    def leave(self, client: Client, subscriptions: dict[bytes, ClientSubscription]) -> None: ...
    def has_room(self) -> None: ...
    def subscribe(self, subscription: ClientSubscription) -> None: ...
    def unsubscribe(self, subscription: ClientSubscription) -> None: ...
    def pass_on(self, client: Client, subject: str, reply: str, block: bytes | None, data: bytes) -> bool: ...
    def pass_on_run(self, client: Client, commands: Sequence[Command], begin: int, until: float) -> int: ...
    def tell_no_responders(self, client: Client, subject: str, reply: str) -> None: ...


class ServerHost(Protocol):
    """The server, for its connections. All connections read into ``buffer``, and share ``known_lines``.

    ``reloads``: how often its settings were changed.
    """

    settings: ServerSettings
    reloads: int
    authenticator: Authenticator
    clock: Clock
    buffer: SharedBuffer
    round_end: RoundEnd
    known_lines: KnownLines

    def admit(self, client: Client) -> str:
        """Count a new connection; return why it is refused, or an empty text."""
        ...

    def entered(self, client: Client) -> None:
        """Tell that a client was let in."""
        ...

    def turned_away(self, client: Client) -> None:
        """Tell that a client was not let in."""
        ...

    def forget(self, client: Client) -> None:
        """Report a connection no more: it is being closed."""
        ...

    def released(self, number: int) -> None:
        """Count the connection of a ``number`` no more: it is closed."""
        ...

    def hello(self, client: Client, nonce: str) -> ServerHello: ...
    def account(self, name: str) -> AccountPort | None: ...
    def new_nonce(self) -> str: ...
    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
