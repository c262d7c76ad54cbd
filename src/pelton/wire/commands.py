"""The commands of the protocol as values; a parser returns them in the order in which they were sent."""

from __future__ import annotations

from typing import Literal

import msgspec

ConnectionState = Literal["greeted", "open", "closed"]
"""A client's connection is ``greeted``, then ``open`` once the client was let in, then ``closed`` for good."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """What one side sent."""


class Connect(Command, frozen=True, gc=False):
    """A client introduces itself; ``options`` is its JSON."""

    options: bytes


class Pub(Command, frozen=True, gc=False):
    """A client publishes; ``reply`` is empty if it expects no answer."""

    subject: str
    reply: str
    data: bytes


class Hpub(Command, frozen=True, gc=False):
    """A client publishes a message with headers; ``block`` is their encoded block."""

    subject: str
    reply: str
    block: bytes
    data: bytes


class Sub(Command, frozen=True, gc=False):
    """A client subscribes under an id of its own; with ``queue`` one member of that group gets each message."""

    subject: str
    queue: str
    sid: bytes


class Unsub(Command, frozen=True, gc=False):
    """A client unsubscribes, at once or once it has received ``limit`` messages in all (0: at once)."""

    sid: bytes
    limit: int


class Ping(Command, frozen=True, gc=False):
    """The other side asks whether this one still answers."""


class Pong(Command, frozen=True, gc=False):
    """The answer to a ping."""


class InfoLine(Command, frozen=True, gc=False):
    """A server introduces itself, or tells what changed; ``facts`` is its JSON."""

    facts: bytes


class Msg(Command, frozen=True, gc=False):
    """A server delivers a message to a subscription; ``block`` is its header block, or None."""

    subject: str
    sid: bytes
    reply: str
    block: bytes | None
    data: bytes


class OkLine(Command, frozen=True, gc=False):
    """A server confirms a command to a client that wants this (``verbose``)."""


class ErrLine(Command, frozen=True, gc=False):
    """A server refuses something."""

    text: str


class Violation(Command, frozen=True, gc=False):
    """What was received is no command, or exceeds a limit. Nothing after it is read: close the connection.

    ``text`` is what NATS servers answer.
    """

    text: str
