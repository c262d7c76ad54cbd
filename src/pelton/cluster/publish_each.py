"""Publishing groups of messages together, each of which is refused by itself."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.api import ApiError, ConfigError, Outgoing, PeltonError
from pelton.cluster.publisher import Publisher


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


async def _refusal(publisher: Publisher, messages: Sequence[Outgoing]) -> PeltonError | None:
    try:
        await publisher.publish_all(messages)
    except (ApiError, ConfigError) as refused:
        return refused
    return None
