"""Offsets of a streaming query: for each stream, the last sequence read, and the stream's creation time. Pure.

Spark writes offsets to the checkpoint as JSON and compares the text, so keys are always sorted. The creation time
distinguishes a stream from one that was deleted and created again under the same name.

Spark does not checkpoint where a query starts: to repeat the first batch it asks for the initial offset again. By then,
limits may have removed messages, or ``latest`` may have moved. So the end of the first batch also records its start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class StreamPosition(NamedTuple):
    """The stream created at ``created`` was read up to ``sequence``.

    ``began``: set if that was all in the first batch, which starts after this sequence; otherwise None.
    """

    sequence: int
    created: str
    began: int | None = None


Offset = dict[str, StreamPosition]


def to_json(offset: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return an offset in the form that Spark checkpoints."""
    return {name: _kept(offset[name]) for name in sorted(offset)}


def _kept(position: StreamPosition) -> dict[str, Any]:
    began = {} if position.began is None else {"began": position.began}
    return {**began, "created": position.created, "sequence": position.sequence}


def from_json(kept: Mapping[str, Any]) -> Offset:
    """Return an offset from the form that Spark checkpoints."""
    return {name: StreamPosition(int(at["sequence"]), str(at["created"]), at.get("began")) for name, at in kept.items()}


def next_end(before: Offset, ends: Offset) -> Offset:
    """Return the end offset of a batch that starts at ``before``; streams that are not in ``ends`` do not advance."""
    after: Offset = {}
    for name in before.keys() | ends.keys():
        start, end = before.get(name), ends.get(name)
        position = end or start
        assert position is not None
        is_first = start is not None and start.began == start.sequence and start.created == position.created
        after[name] = position._replace(began=start.began if start is not None and is_first else None)
    return after


def begin(end: StreamPosition, start: StreamPosition | None) -> StreamPosition | None:
    """Return where a stream's part of a batch starts, given Spark's start offset; None: at the stream's beginning."""
    return start if end.began is None else StreamPosition(end.began, end.created)


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how many sequences a streaming query was behind each stream, according to its progress.

    ``progress`` is ``query.lastProgress`` (or an item of ``recentProgress``); sources of other formats are ignored. As
    long as the query has made no progress, that is None, and nothing is known of any stream.
    """
    behind: dict[str, int] = {}
    for source in progress["sources"] if progress is not None else ():
        latest, end = (_known(source[key]) for key in ("latestOffset", "endOffset"))
        for name, position in latest.items():
            read = end[name].sequence if name in end else 0
            behind[name] = behind.get(name, 0) + position.sequence - read
    return behind


def _known(kept: str | None) -> Offset:
    """Parse an offset from a query's progress; an empty one if it is another format's."""
    try:
        return from_json(json.loads(kept or "{}"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
