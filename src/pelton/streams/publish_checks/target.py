"""The stream that a publish is checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pelton.streams.reader import Reader
from pelton.streams.state import StreamState


class AtomicBatch:
    """A batch that is stored as one (ADR-50): its conditions refer to the stream before it.

    ``base`` is the stream's last sequence before it, ``lasts`` holds that of each subject or filter with a condition,
    and ``written`` the subjects that the batch has written so far.
    """

    def __init__(self, base: int, lasts: Mapping[str, int]) -> None:
        self.base = base
        self.lasts = lasts
        self.written: set[str] = set()


class Target(Protocol):
    """``batch`` is set while an atomic batch is stored; ``counts`` tells whether its subjects are counters."""

    @property
    def state(self) -> StreamState: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def batch(self) -> AtomicBatch | None: ...
    @property
    def counts(self) -> bool: ...

    def stored_subject(self, subject: str) -> str: ...
    def last_seq_of(self, subject_filter: str) -> int: ...
    def flush(self) -> None: ...
