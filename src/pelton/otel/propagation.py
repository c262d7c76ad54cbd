"""The context of a trace in the headers of a message, and in what travels with a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link

from pelton.api import Delivered, Outgoing, headers

_HAS_CONTEXT: Final = "traceparent"


def injected(message: Outgoing) -> Outgoing:
    """Return a message with the context that is current here, unless the program has given it one."""
    block = message.headers
    if block is not None and headers.first(block, _HAS_CONTEXT) is not None:
        return message
    for name, value in current().items():
        block = headers.with_value(block, name, value)
    return msgspec.structs.replace(message, headers=block)


def current() -> dict[str, str]:
    """Return the context that is current here, as texts by name, in the form of the program's propagators."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: value for name, value in carrier.items() if value.isprintable()}


def context_of_block(block: bytes | None) -> Context | None:
    """Return the context in a message's headers, or None."""
    if block is None:
        return None
    carrier = {name: value for name in propagate.get_global_textmap().fields if (value := headers.first(block, name))}
    return context_of(carrier)


def context_of(carrier: Mapping[str, str]) -> Context | None:
    """Return the context that texts by name hold, or None."""
    if not carrier:
        return None
    found = propagate.extract(carrier)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def link_to(context: Context | None) -> list[Link]:
    """Return a link to what has made a context, if there is one."""
    return [] if context is None else [Link(trace.get_current_span(context).get_span_context())]


def links_of(delivered: Sequence[Delivered]) -> list[Link]:
    """Return links to those who have sent these messages."""
    return [link for one in delivered for link in link_to(context_of_block(one.headers))]
