"""A stream inside a transaction: its state, and who appends to it, removes from it and reads it.

All state that matters is in rows; :class:`~pelton.streams.state.StreamState` is a copy of the small ones and a buffer
of what the open transaction has appended. ``flush`` writes the buffer; anything that reads message rows writes those
first. If another process has written, or a transaction was rolled back, the copy is read again.
"""

from __future__ import annotations

from pelton.api import StreamConfig
from pelton.storage import FastGet
from pelton.streams.appender import Appender
from pelton.streams.bulk_appender import BulkAppender
from pelton.streams.copier import Copier
from pelton.streams.env import StreamEnv
from pelton.streams.reader import Reader
from pelton.streams.remover import Remover
from pelton.streams.state import StreamState
from pelton.streams.ticking import pass_time


class StreamLog:
    """The stream with row id ``stream`` and configuration ``config``, ``created`` at a time."""

    def __init__(self, env: StreamEnv, stream: int, config: StreamConfig, created: int) -> None:
        self.id = stream
        self.name = config.name
        self.created = created
        self.state = StreamState(env, stream, config)
        self.table = self.state.table
        self.fast_get = FastGet(env.database, stream)
        self.reader = Reader(self.state)
        self.remover = Remover(self.state, self.reader)
        self.appender = Appender(self.state, self.reader, self.remover)
        self.bulk = BulkAppender(self.state)
        self.copier = Copier(self.appender)

    @property
    def config(self) -> StreamConfig:
        """Its configuration."""
        return self.state.config

    @property
    def has_fast_get(self) -> bool:
        """Whether one row, its time, and the configuration are all that a read of one message goes by."""
        return self.config.allow_direct and not self.state.is_timed

    def configure(self, config: StreamConfig) -> None:
        """Take a (changed) configuration; limits apply from the next flush on."""
        self.state.configure(config)
        self.appender.configure(config)

    def load(self) -> None:
        """Read the small rows again."""
        self.state.load()

    def reset(self) -> None:
        """Forget everything that was not committed."""
        self.state.reset()

    def flush(self) -> None:
        """Write what the transaction holds in memory, and apply the limits."""
        self.appender.flush()

    def advance(self, now: int) -> None:
        """Let all happen that is due (``ticking.py``): nothing may read or write a stream before it has."""
        if self.state.is_overdue(now):
            pass_time(self.appender, self.remover, now)
