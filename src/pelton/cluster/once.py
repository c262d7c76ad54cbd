"""What an embedded store does in one transaction, in steps on a server: settling once, and withdrawing messages.

A server neither refuses the ack of a delivery that was replaced, nor does it tell whether anybody holds a message. So
the last message of an ending is stored on condition that there is none of its filter ``once``: the first counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from pelton.api import (
    AckRejectedError,
    ApiError,
    Backend,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    Outgoing,
    PubAck,
    Settled,
    WrongLastSequenceError,
)
from pelton.api.tracing import Replacement, Withdrawn, as_first, only_of

_AT_ONCE: Final = 64
_DELETE_FAILED: Final = 10057


def messages_of(ending: Settled | Replacement) -> Sequence[Outgoing]:
    """Return the messages of an ending, the last of which has to be the first of its filter, if it has one."""
    messages = ending.messages
    return [*messages[:-1], as_first(messages[-1], ending.once)] if ending.once else messages


async def why_without_effect(
    backend: Backend, ending: Settled, stream: str, consumer: str, refused: WrongLastSequenceError
) -> AckRejectedError | None:
    """Return why an ending has no effect whose last message was refused; None if that very message is stored.

    It is when a publish was repeated: a server checks the condition before it knows the message again.
    """
    last = ending.messages[-1]
    try:
        found = (await backend.call(MsgGet(stream=refused.stream, last_by_subj=only_of(last, ending.once)))).message
    except MessageNotFoundError:
        pass
    else:
        if (found.subject, found.data) == (last.subject, last.data):
            return None
    return AckRejectedError(stream, consumer, ending.ack.seq, "it was settled otherwise meanwhile")


async def withdraw_each(backend: Backend, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
    """Withdraw messages one by one, some of them side by side: see `Backend.withdraw`."""
    acks: list[list[PubAck] | None] = []
    wanted = list(instead.items())
    for start in range(0, len(wanted), _AT_ONCE):
        some = (_withdraw(backend, stream, *one) for one in wanted[start : start + _AT_ONCE])
        acks += await asyncio.gather(*some)
    done = [(seq, stored) for seq, stored in zip(instead, acks, strict=True) if stored is not None]
    return Withdrawn(tuple(seq for seq, _ in done), tuple(ack for _, stored in done for ack in stored), tuple(instead))


async def _withdraw(backend: Backend, stream: str, seq: int, instead: Replacement) -> list[PubAck] | None:
    """Store what is to be there instead of a message, then remove that; None if it is left."""
    acks: list[PubAck] = []
    messages = messages_of(instead)
    try:
        for message in messages:
            acks.append(await backend.publish(message.subject, message.data, message.headers))
    except WrongLastSequenceError:
        if not instead.once or len(acks) < len(messages) - 1:
            raise
        return None
    try:
        await backend.call(MsgDelete(stream=stream, seq=seq))
    except ApiError as refused:
        # Whoever had taken it has found what is stored instead, and removed it.
        if not isinstance(refused, MessageNotFoundError) and refused.err_code != _DELETE_FAILED:
            raise
    return acks
