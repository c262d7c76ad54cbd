"""How the jobs of a queue have ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConfigError
from pelton.queue.backing.scan import scan
from pelton.queue.model.checks import seconds
from pelton.queue.model.states import ENDINGS, Ending, Outcome

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.define.queue_context import QueueContext

_outcome: Final = msgspec.json.Decoder(Outcome).decode


class History:
    """The outcomes of one queue's jobs."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue

    async def outcomes(self, state: Ending | None = None) -> AsyncGenerator[Outcome]:
        """Iterate over the outcomes of jobs, oldest first; only over those in state ``state`` if given.

        Raises ConfigError.
        """
        if state is not None and state not in ENDINGS:
            raise ConfigError(
                f"queue {self._queue.name!r}: no history of {state!r}; a job ends as {', '.join(ENDINGS)}"
            )
        stream = await self._queue.jet.stream(self._queue.names.history)
        filter_subject = self._queue.names.ending_subject(state, "*") if state else ""
        async for _, data in scan(stream, filter_subject):
            yield _outcome(data)

    async def clean(self, older_than: Seconds) -> int:
        """Remove from the history what ended more than ``older_than`` (seconds) ago; return how many were removed.

        Raises ConfigError.
        """
        age = seconds(f"queue {self._queue.name!r}: older_than", older_than)
        await self._queue.time.refresh(self._queue.names.history)
        limit = self._queue.time.now() - int(age * 1e9)
        stream = await self._queue.jet.stream(self._queue.names.history)
        upto = 0
        async with aclosing(scan(stream, "")) as records:
            async for seq, data in records:
                if _outcome(data).finished_at > limit:
                    break
                upto = seq
        return await stream.purge(seq=upto + 1) if upto else 0
