"""What a stream needs from its store, given once when it is created."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from pelton.api.config import Storage
from pelton.storage import Database
from pelton.subjects import Draw

IsWanted = Callable[[str], bool]
CheckQuota = Callable[[Storage, int], None]


class Sources(Protocol):
    """The sources and mirrors between the streams of a store (``sourcing``)."""

    @property
    def watched(self) -> Container[int]:
        """The row ids of streams that record removals: they source from others, or others from them."""

    def written(self, stream: int) -> None:
        """Copy new messages of a watched stream to those that source it, before its limits are applied."""


class PushesOfStreams(Protocol):
    """The push consumers of a store that have subscribers (``engine/session``)."""

    @property
    def streams(self) -> Container[int]:
        """The row ids of streams that have push consumers."""

    def deliver(self, stream: int) -> None:
        """Deliver what a stream holds to its push consumers, before messages that they have not received are removed.

        Call it when everything that the transaction has changed so far is written.
        """


@dataclass(frozen=True, slots=True)
class StreamEnv:
    """``database`` holds the rows.

    ``has_recipient(subject)`` tells whether a message published now would reach a stream or a subscriber, and
    ``may_have_recipient(filter)`` quickly checks whether one that matches might. ``draw`` is the randomness of
    transforms. ``wanted`` tells whether a subject is wanted, by row id, for streams with interest retention that do not
    keep everything. ``check_quota`` refuses bytes beyond the limit of all streams together; None if there is none.
    """

    database: Database
    has_recipient: Callable[[str], bool]
    may_have_recipient: Callable[[str], bool]
    draw: Draw
    wanted: Mapping[int, IsWanted]
    check_quota: CheckQuota | None
    sources: Sources
    live: PushesOfStreams
