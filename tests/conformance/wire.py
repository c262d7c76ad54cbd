"""Replies in wire form, validated against NATS's JSON schemas if those are stored beside the repository."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pelton
from pelton.api import encode_reply
from pelton.api.requests import VERB_OF, Request
from tests.api.schemas import NATS, schema_errors

# The schemas are older than some features of nats-server 2.15.
_NEWER = frozenset({"allow_atomic", "allow_batched", "allow_msg_counter", "allow_msg_schedules", "persist_mode"})
_NEWER_VALUES = {"prioritized": "overflow", "flow_control": "none"}
# Its schema requires the type of another reply.
_WRONG = frozenset({"consumer_unpin_response"})


def _known(value: Any) -> Any:
    """Return a reply without the fields that the schemas cannot know."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items() if key not in _NEWER}
    if isinstance(value, list):
        return [_known(item) for item in value]
    return _NEWER_VALUES.get(value, value) if isinstance(value, str) else value


def validated(jet: pelton.Jet) -> None:
    """Validate every reply of a store against its schema; AssertionError in the call that got a wrong one."""
    if NATS.is_dir():
        jet.backend.call = _checked(jet.backend.call)  # type: ignore[method-assign]  # of this one store


def _checked(call: Callable[[Request[Any]], Awaitable[Any]]) -> Any:
    async def checked(request: Request[Any]) -> Any:
        reply = await call(request)
        verb = VERB_OF.get(type(request))
        if verb is not None:
            kind = verb.reply_type.removeprefix("io.nats.jetstream.api.v1.")
            body = json.loads(encode_reply(type(request), reply))
            problems = [] if kind in _WRONG else schema_errors(kind, json.dumps(_known(body)).encode())
            assert problems == [], f"{verb.name}: {problems}"
        return reply

    return checked
