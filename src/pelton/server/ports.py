"""How the parts of a server see each other: a client, its account, and services on subjects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pelton.server.accounts import AccountUsage
from pelton.server.auth import ServerUser
from pelton.server.router import ClientSubscription, Receiver
from pelton.wire import Command, ConnectOptions


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
