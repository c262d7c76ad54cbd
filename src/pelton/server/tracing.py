"""Tells where a message goes, if its headers ask for it (ADR-41): ``nats trace``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pelton.api import ConfigError, headers, rfc3339
from pelton.runtime import Random
from pelton.server.exchange import ServiceRoute, StreamRoute
from pelton.server.monitoring.observed import Observed, server_facts
from pelton.server.ports import Client
from pelton.server.router import ClientSubscription, Targets
from pelton.server.settings.options import TraceConfig
from pelton.subjects import is_subject

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
    return headers.replaced(block, _DESTINATION, _DISABLED) if is_asked else block


class CrossedTrace(NamedTuple):
    """Where a message is of another account, too, and whom it reaches there, if that is to be told."""

    route: ServiceRoute | StreamRoute
    receivers: Sequence[ClientSubscription] = ()
    stream: str = ""


class MessageTracer:
    """Describes messages of one server."""

    def __init__(self, server: Observed, random: Random) -> None:
        self._server = server
        self._random = random

    def asked(self, client: Client, block: bytes, account: TraceConfig) -> TraceRequest | None:
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
        client: Client,
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
                services += _reached(one, one.route.subject)
            else:
                streams.append({"type": "se", "acc": one.route.account, "to": one.route.subject})
                streams += _reached(one, one.route.subject)
        events = [
            {"type": "in", **_named(client), "acc": client.account_name, "subj": subject},
            *services,
            *map(_egress, [*targets.plain, *(group[0] for group in targets.groups)]),
            *streams,
            *([{"type": "js", "stream": stream, "subject": subject}] if stream else []),
        ]
        timed = [{"type": event.pop("type"), "ts": now, **event} for event in events]
        request = {"header": _shown(block), "msgsize": len(block) + len(data)}
        return msgspec.json.encode({"server": server_facts(self._server), "request": request, "events": timed})


def _is_sampled(block: bytes) -> bool:
    """Whether a message is part of a trace (``traceparent`` of W3C) that is recorded."""
    if _PARENT.encode() not in block.lower():
        return False
    found = next((values[0] for name, values in _shown(block).items() if name.lower() == _PARENT), "")
    pieces = found.split("-")
    try:
        return len(pieces) == 4 and len(pieces[3]) == 2 and bool(int(pieces[3], 16) & 1)
    except ValueError:
        return False


def _reached(crossed: CrossedTrace, subject: str) -> list[dict[str, Any]]:
    account = crossed.route.account
    found = [{**_egress(one), "acc": account} for one in crossed.receivers]
    return found + ([{"type": "js", "stream": crossed.stream, "subject": subject}] if crossed.stream else [])


def _egress(one: ClientSubscription) -> dict[str, Any]:
    queue = {"queue": one.queue} if one.queue else {}
    return {"type": "eg", **_named(one.client), "sub": one.subject, **queue}


def _shown(block: bytes) -> dict[str, list[str]]:
    """Return the headers as JSON can show them; none if they are malformed."""
    try:
        found = headers.decode(block.decode("utf-8", "replace").encode())
    except ConfigError:
        return {}
    return {name: list(found.get_all(name)) for name in found}


def _named(client: Any) -> dict[str, Any]:
    """Return what names a client; ``kind`` 0 is one, and no other server."""
    name = client.options.name
    return {"kind": 0, "cid": client.number} | ({"name": name} if name else {})
