"""The message that puts a job into a queue. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from pelton.api import ConfigError, Outgoing, headers
from pelton.queue.model.naming import QueueNames, encode_key
from pelton.queue.model.states import Envelope

_encode: Final = msgspec.json.Encoder().encode


class JobMessage:
    """How jobs of one name are stored in a queue; ``exclusive`` is the queue's setting."""

    def __init__(self, names: QueueNames, job: str, *, exclusive: bool) -> None:
        self._names = names
        self._job = job
        self._exclusive = exclusive

    def message(self, args: bytes, key: str = "", idempotency_key: str = "") -> Outgoing:
        """Return the message of one job with arguments as a JSON object by name. Raises ConfigError."""
        if key != "":
            encode_key(key)
        envelope = Envelope(job=self._job, args=msgspec.Raw(args), key=key)
        subject = self._names.job_subject(key if self._exclusive else "")
        if not isinstance(idempotency_key, str):
            raise ConfigError(f"job {self._job!r}: idempotency_key is {idempotency_key!r}; give a text (str)")
        # Per job name: another job of the queue may work on the same thing.
        msg_id = f"{self._job}/{idempotency_key}"
        block = headers.encode({headers.MSG_ID: msg_id}) if idempotency_key else None
        return Outgoing(subject, _encode(envelope), block)
