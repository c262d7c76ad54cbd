"""How a job is enqueued, apart from its arguments. Pure."""

from __future__ import annotations

import msgspec

from pelton.api import ConfigError
from pelton.queue.model.naming import encode_key


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one enqueued job; empty means not set.

    ``key`` names what the job works on: in an exclusive queue one job per key runs at a time, in order.
    ``idempotency_key`` makes it safe to repeat the call: the second one returns the job of the first.
    """

    key: str = ""
    idempotency_key: str = ""

    def check(self, what: str) -> None:
        """Raise ConfigError for options that cannot be kept; ``what`` names the job."""
        if self.key != "":
            encode_key(self.key)
        if not isinstance(self.idempotency_key, str):
            raise ConfigError(f"{what}: idempotency_key is {self.idempotency_key!r}; give a text (str)")


PLAIN = JobOptions()
"""The options of a job that was enqueued with none."""
