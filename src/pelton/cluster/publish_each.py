"""Publishing many messages, or groups of messages, together: each is refused by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pelton.api import ApiError, ConfigError, Outgoing, PeltonError, PubAck
from pelton.cluster.publisher import Publisher

_AT_ONCE: Final = 500


async def publish_each(
    publisher: Publisher, groups: Sequence[Sequence[Outgoing]], refusals: Sequence[PeltonError | None]
) -> list[PeltonError | None]:
    """Publish groups of messages with ids, except for those that were refused before; return why each is refused."""
    answers = list(refusals)
    wanted = [index for index, refused in enumerate(refusals) if refused is None and groups[index]]
    try:
        await publisher.publish_all([message for index in wanted for message in groups[index]])
    except (ApiError, ConfigError):
        # Their ids make it harmless to repeat those that were stored.
        for index in wanted:
            answers[index] = await _refusal(publisher, groups[index])
    return answers


async def publish_apart(publisher: Publisher, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
    """Publish messages, each of which is answered by itself; other errors are raised when all are answered."""
    answers: list[PubAck | PeltonError] = []
    failed: list[BaseException] = []
    for start in range(0, len(messages), _AT_ONCE):
        sending = map(publisher.publish, messages[start : start + _AT_ONCE])
        for answer in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(answer, PubAck | PeltonError):
                answers.append(answer)
            else:
                failed.append(answer)
    if failed:
        raise failed[0]
    return answers


async def _refusal(publisher: Publisher, messages: Sequence[Outgoing]) -> PeltonError | None:
    try:
        await publisher.publish_all(messages)
    except (ApiError, ConfigError) as refused:
        return refused
    return None
