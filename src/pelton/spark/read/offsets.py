"""Where a streaming query stands: for each stream the last sequence it has read, and which stream that was.

Spark writes offsets into the checkpoint as JSON and compares the texts: keys are in order, always. A stream has the
time of its making beside its sequence, so that one made anew under the same name is not taken for it. Pure.

Spark does not write down where a query begins: when the first batch is to be repeated it asks for that anew, and
limits may have removed messages by then, or more have come after ``latest``. So the end of the first batch also says
where that began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class StreamPosition(NamedTuple):
    """All up to ``sequence`` of the stream made at ``created`` was read.

    ``began``: all of it in one batch, the first, which begins behind that sequence; None where that is not so.
    """

    sequence: int
    created: str
    began: int | None = None


Offset = dict[str, StreamPosition]


def to_json(offset: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return an offset as Spark keeps it."""
    return {name: _kept(offset[name]) for name in sorted(offset)}


def _kept(position: StreamPosition) -> dict[str, Any]:
    began = {} if position.began is None else {"began": position.began}
    return {**began, "created": position.created, "sequence": position.sequence}


def from_json(kept: Mapping[str, Any]) -> Offset:
    """Return an offset that Spark has kept."""
    return {name: StreamPosition(int(at["sequence"]), str(at["created"]), at.get("began")) for name, at in kept.items()}


def next_end(before: Offset, ends: Offset) -> Offset:
    """Return where a batch ends that begins at ``before`` and goes up to ``ends`` where it goes on at all."""
    after: Offset = {}
    for name in before.keys() | ends.keys():
        start, end = before.get(name), ends.get(name)
        position = end or start
        assert position is not None
        is_first = start is not None and start.began == start.sequence and start.created == position.created
        after[name] = position._replace(began=start.began if start is not None and is_first else None)
    return after


def begin(end: StreamPosition, start: StreamPosition | None) -> StreamPosition | None:
    """Return where a stream's part of a batch begins, given what Spark thinks of that; None: where the stream does."""
    return start if end.began is None else StreamPosition(end.began, end.created)


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
