"""Where a streaming query stands: for each stream the last sequence it has read, and which stream that was.

Spark writes offsets into the checkpoint as JSON and compares the texts: keys are in order, always. A stream has the
time of its making beside its sequence, so that one made anew under the same name is not taken for it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Position(NamedTuple):
    """All up to ``sequence`` of the stream made at ``created`` was read."""

    sequence: int
    created: str


Offset = dict[str, Position]


def to_json(offset: Mapping[str, Position]) -> dict[str, Any]:
    """Return an offset as Spark keeps it."""
    return {name: {"created": offset[name].created, "sequence": offset[name].sequence} for name in sorted(offset)}


def from_json(kept: Mapping[str, Any]) -> Offset:
    """Return an offset that Spark has kept."""
    return {name: Position(int(value["sequence"]), str(value["created"])) for name, value in kept.items()}


def lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many sequences a streaming query was behind each stream, by its progress.

    ``progress`` is ``query.lastProgress`` (or a part of ``recentProgress``); sources of other formats are passed by.
    """
    behind: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = (_known(source[key]) for key in ("latestOffset", "endOffset"))
        for name, position in latest.items():
            read = end[name].sequence if name in end else 0
            behind[name] = behind.get(name, 0) + position.sequence - read
    return behind


def _known(kept: str | None) -> Offset:
    """Return an offset out of a query's progress, which does not say what format it is of."""
    try:
        return from_json(json.loads(kept or "{}"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
