"""The records of attempts that did not end their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import MessageNotFoundError
from pelton.queue.model.states import Attempt

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames

_attempt: Final = msgspec.json.Decoder(Attempt).decode


class FailedAttempts:
    """The last failed attempt of each job of a queue."""

    def __init__(self, jet: Streams, names: QueueNames) -> None:
        self._jet = jet
        self._names = names

    async def last(self, job_id: str) -> Attempt | None:
        """Return the record of a job's last attempt that did not end it, or None."""
        stream = await self._jet.stream(self._names.attempts)
        try:
            return _attempt((await stream.get_last_message(self._names.attempt_subject(job_id))).data)
        except MessageNotFoundError:
            return None
