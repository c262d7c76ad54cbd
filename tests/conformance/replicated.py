"""A cluster's backend on which every stream has three replicas, whatever a case requests."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pelton.api import Backend, Outgoing, PubAck, StreamCreate

REPLICAS = 3


class Replicated:
    """Forwards everything; a new stream gets three replicas."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages; the first one alone, because our server may not know of a new stream's subjects yet."""
        first = [await self._backend.publish(m.subject, m.data, m.headers) for m in messages[:1]]
        return first + await self._backend.publish_batch(messages[1:])

    async def call(self, request: Any) -> Any:
        if isinstance(request, StreamCreate) and request.config.num_replicas in (0, 1):
            config = msgspec.structs.replace(request.config, num_replicas=REPLICAS)
            request = msgspec.structs.replace(request, config=config)
        return await self._backend.call(request)
