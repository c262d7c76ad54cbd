"""What a stream asks of the world around it, given once when it is made."""

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
        """The row ids of streams whose removals have to be known: they take from others, or others from them."""

    def written(self, stream: int) -> None:
        """Go on with what others take from a stream: it was written, and its limits are not applied yet."""


@dataclass(frozen=True, slots=True)
class StreamEnv:
    """``database`` holds the rows.

    ``has_listener(subject)`` says whether a message published now would reach a stream or a subscriber, and
    ``may_have_listener(filter)`` is a quick look whether any of a filter's might. ``draw`` is chance, for transforms.
    ``wanted``: by row id, for streams that keep messages by interest and not all of them, whether a subject is wanted.
    ``check_quota`` refuses bytes for which all streams together have no room; None if there is no such limit.
    """

    database: Database
    has_recipient: Callable[[str], bool]
    may_have_recipient: Callable[[str], bool]
    draw: Draw
    wanted: Mapping[int, IsWanted]
    check_quota: CheckQuota | None
    sources: Sources
