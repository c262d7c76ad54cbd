"""The life of a client's connection, as one table.

A connection is ``greeted`` when the server has sent its ``INFO``; ``open`` once the client's ``CONNECT`` was accepted;
``closed`` for good. Before ``CONNECT``, only a ping is answered.
"""

from __future__ import annotations

from typing import Final, Literal

from pelton.wire.commands import Command, Connect, Hpub, Ping, Pong, Pub, Sub, Unsub, Violation

ConnectionState = Literal["greeted", "open", "closed"]

STATES: Final[dict[ConnectionState, dict[type[Command], ConnectionState]]] = {
    "greeted": {Connect: "open", Ping: "greeted", Pong: "greeted", Violation: "closed"},
    "open": {
        Connect: "open",
        Pub: "open",
        Hpub: "open",
        Sub: "open",
        Unsub: "open",
        Ping: "open",
        Pong: "open",
        Violation: "closed",
    },
    "closed": {},
}
"""What a client may send in each state, and the state that follows if the server accepts it."""


def is_allowed(state: ConnectionState, kind: type[Command]) -> bool:
    """Whether a client may send such a command now."""
    return kind in STATES[state]


def next_state(state: ConnectionState, kind: type[Command]) -> ConnectionState:
    """Return the state after an accepted command; `closed` for one that is not allowed."""
    return STATES[state].get(kind, "closed")
