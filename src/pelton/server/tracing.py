"""Tells where a message goes, if its headers ask for it (ADR-41): ``nats trace``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pelton.api import ConfigError, headers, rfc3339
from pelton.server.exchange import ServiceRoute, StreamRoute
from pelton.server.monitoring.observed import Observed, server_facts
from pelton.server.ports import Client
from pelton.server.router import Targets

TRACE: Final = b"Nats-Trace-Dest"
_DESTINATION: Final = "Nats-Trace-Dest"
_ONLY: Final = "Nats-Trace-Only"
_TRUE: Final = frozenset({"1", "true", "on"})


def trace_destination(block: bytes) -> str:
    """Return where a message is traced to; "" if it is not."""
    return headers.first(block, _DESTINATION) or ""


def is_trace_only(block: bytes) -> bool:
    """Whether a message is traced, and neither delivered nor stored."""
    return (headers.first(block, _ONLY) or "").lower() in _TRUE


def without_trace(block: bytes) -> bytes:
    """Return the headers as a stream keeps them: who gets the message from there does not trace it again."""
    return headers.replaced(block, _DESTINATION, "trace disabled") if trace_destination(block) else block


class Crossed(NamedTuple):
    """Where a message is a request of another account's service, and who receives it there: an entry each."""

    services: Sequence[ServiceRoute] = ()
    streams: Sequence[StreamRoute] = ()


class MessageTracer:
    """Describes messages of one server."""

    def __init__(self, server: Observed) -> None:
        self._server = server

    def describe(
        self, client: Client, subject: str, block: bytes, data: bytes, targets: Targets, stream: str, crossed: Crossed
    ) -> bytes:
        """Return the event that tells from whom a message came, and whom it reaches: clients, and maybe a stream.

        Of other accounts it tells that they are reached (``crossed``), not whom of them.
        """
        now = rfc3339(self._server.clock.now())
        found = [*targets.plain, *(group[0] for group in targets.groups)]
        events: list[dict[str, Any]] = [
            {"type": "in", "ts": now, **_named(client), "acc": client.account_name, "subj": subject}
        ]
        events += [
            {"type": "si", "ts": now, "acc": one.account, "from": subject, "to": one.subject}
            for one in crossed.services
        ]
        for one in found:
            queue = {"queue": one.queue} if one.queue else {}
            events.append({"type": "eg", "ts": now, **_named(one.client), "sub": one.subject, **queue})
        events += [{"type": "se", "ts": now, "acc": one.account, "to": one.subject} for one in crossed.streams]
        if stream:
            events.append({"type": "js", "ts": now, "stream": stream, "subject": subject})
        request = {"header": _shown(block), "msgsize": len(block) + len(data)}
        return msgspec.json.encode({"server": server_facts(self._server), "request": request, "events": events})


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
