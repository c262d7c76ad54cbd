"""Publishing to a cluster: many in flight, each acknowledged, and what a lost connection means for each.

A publish whose acknowledgement was lost may have been stored. With a message id it is sent again, and lands
once; without one, sending it again could store it twice, so the caller is told that its fate is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pelton.api import NoStreamForSubjectError, Outgoing, PubAck, ServerTimeoutError, headers
from pelton.api.errors import from_reply
from pelton.api.info import ErrorBody
from pelton.cluster.connection import NO_RESPONDERS, Answer, Connection, Interrupted, NotSent

_IN_FLIGHT: Final = 4096
_MSG_ID: Final = b"\r\n" + headers.MSG_ID.encode() + b":"


class _Reply(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    domain: str = ""
    val: str = ""
    error: ErrorBody | None = None


_reply: Final = msgspec.json.Decoder(_Reply).decode


async def publish_one(connection: Connection, message: Outgoing) -> PubAck:
    """Store a message and return its acknowledgement; raises as `Backend.publish`."""
    subject, data, block = message
    end: float | None = None
    while True:
        try:
            return _acked(subject, await connection.ask(subject, data, block))
        except Interrupted as lost:
            if not isinstance(lost, NotSent) and not _repeatable(block):
                raise _unknown(connection, 1) from None
            end = _end(connection) if end is None else end
            await connection.until_connected(end)


async def publish_all(connection: Connection, messages: Sequence[Outgoing]) -> list[PubAck]:
    """Store messages in order; raises the error of the first that is refused.

    Up to 4,096 are in flight at a time, so some of those after a refused message may have been stored.
    """
    acks: list[PubAck] = []
    end: float | None = None
    while len(acks) < len(messages):
        window = messages[len(acks) : len(acks) + _IN_FLIGHT]
        answers = await connection.ask_all(window)
        for (subject, _, _), answer in zip(window, answers, strict=True):
            if isinstance(answer, Interrupted):
                break
            if isinstance(answer, Exception):
                raise answer
            acks.append(_acked(subject, answer))
            end = None
        else:
            continue
        unknown = sum(_may_be_stored(answer, message) for answer, message in zip(answers, window, strict=True))
        if unknown:
            raise _unknown(connection, unknown)
        end = _end(connection) if end is None else end
        await connection.until_connected(end)
    return acks


def with_ids(messages: Sequence[Outgoing], base: str) -> list[Outgoing]:
    """Return messages that may be sent twice: those without an id get one."""
    return [
        (subject, data, block if _repeatable(block) else _with_id(block, f"{base}-{index}"))
        for index, (subject, data, block) in enumerate(messages)
    ]


def _with_id(block: bytes | None, msg_id: str) -> bytes:
    known = headers.decode(block) if block is not None else headers.Headers()
    return headers.encode({**{name: known.get_all(name) for name in known}, headers.MSG_ID: msg_id})


def _may_be_stored(answer: Answer | Exception, message: Outgoing) -> bool:
    """Whether nobody knows what became of a message, and sending it again might store it twice."""
    return isinstance(answer, Interrupted) and not isinstance(answer, NotSent) and not _repeatable(message[2])


def _repeatable(block: bytes | None) -> bool:
    return block is not None and _MSG_ID in block


def _end(connection: Connection) -> float:
    return connection.clock.monotonic() + connection.settings.patience


def _unknown(connection: Connection, number: int) -> ServerTimeoutError:
    what = "a publish" if number == 1 else f"up to {number} publishes"
    reason = f"the connection was lost while {what} awaited the acknowledgement; with a msg_id it is repeated safely"
    return ServerTimeoutError(connection.settings.name, reason)


def _acked(subject: str, answer: Answer) -> PubAck:
    if answer.status == NO_RESPONDERS:
        raise NoStreamForSubjectError(subject)
    found = _reply(answer.data)
    if found.error is not None:
        raise from_reply(found.error.code, found.error.err_code, found.error.description, stream=found.stream)
    return PubAck(found.stream, found.seq, found.duplicate, found.domain, found.val)
