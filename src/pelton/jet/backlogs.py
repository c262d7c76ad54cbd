"""How the consumers of a store went: a note for each minute of the last day, of the backlogs of those that have any.

Whoever runs anyway writes it: workers, servers, dashboards that may write. The first one that looks in a new minute
does, the others find it done; two at the same moment write the same place. The notes lie beside all streams, in places
that are written over after a day (:class:`MinuteNote`), so they take bounded space, and nobody's list or limit knows
them. A NATS cluster has no such places: there, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from pelton.api import (
    ConsumerBacklog,
    ConsumerBacklogs,
    ConsumerInfo,
    MinuteNote,
    MinuteNotes,
    StreamInfo,
    parse_rfc3339,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.times import SECOND
from pelton.jet.streams import Streams

MINUTE: Final = 60 * SECOND
_MOST: Final = 100
_MOST_BYTES: Final = 8192


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """What is noted of a minute; consumers without any backlog are left out, and the others if it is not complete."""

    minute: int
    is_complete: bool
    backlogs: list[ConsumerBacklog]
    last_seqs: dict[str, int]


class BacklogPoint(NamedTuple):
    """The backlog of a consumer at the end of a ``minute`` since 1970."""

    minute: int
    pending: int
    ack_pending: int


class StreamTrend(NamedTuple):
    """How a stream went."""

    backlogs: dict[str, list[BacklogPoint]]
    """Of its consumers, by name, oldest first."""
    last_seqs: list[tuple[int, int]]
    """Minutes with the last sequence at their end, of a stream whose messages leave when they are done."""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Note).decode


async def note_backlogs(jet: Streams) -> None:
    """Write the note of the minute that has just ended, unless it is there. Raises PeltonError."""
    planning, minute = jet.backend.planning, jet.runtime.clock.now() // MINUTE - 1
    if planning.read_only or MinuteNote not in planning.own_verbs:
        return
    there = {note.minute for note in await _notes(jet, minute, minute + 1)}
    # If the next minute is there as well, the clock went back, and what is there is of the first time.
    if minute in there and minute + 1 not in there:
        return
    found, last_seqs, reply = list[ConsumerBacklog](), dict[str, int](), None
    while reply is None or reply.after:
        reply = await jet.backend.call(ConsumerBacklogs(after=reply.after if reply else ""))
        found += (one for one in reply.backlogs if one.pending or one.ack_pending)
        last_seqs |= reply.last_seqs
    found.sort(key=lambda one: -one.pending - one.ack_pending)
    most = _MOST
    while len(data := _encode(_cut(minute, found, last_seqs, most))) > _MOST_BYTES:
        most //= 2
    await jet.backend.call(MinuteNote(minute=minute, data=data))


def _cut(minute: int, found: list[ConsumerBacklog], last_seqs: dict[str, int], most: int) -> _Note:
    is_complete = max(len(found), len(last_seqs)) <= most
    return _Note(minute, is_complete, found[:most], dict(list(last_seqs.items())[:most]))


async def stream_trend(
    jet: Streams, info: StreamInfo, consumers: Sequence[ConsumerInfo], since: int
) -> StreamTrend | None:
    """Return how a stream and some of its consumers went since a time, in wall nanoseconds; None on a cluster."""
    if MinuteNotes not in jet.backend.planning.own_verbs:
        return None
    stream, now = info.config.name, jet.runtime.clock.now()
    first = max(since, parse_rfc3339(info.created)) // MINUTE
    # What is noted of an earlier one of that name is none of its own.
    begins = {one.name: parse_rfc3339(one.created) // MINUTE for one in consumers}
    trend = StreamTrend({name: [] for name in begins}, [])
    for note in await _notes(jet, first, now // MINUTE - 1):
        if (last_seq := note.last_seqs.get(stream)) is not None:
            trend.last_seqs.append((note.minute, last_seq))
        of_stream = {one.consumer: one for one in note.backlogs if one.stream == stream}
        for name, points in trend.backlogs.items():
            if note.minute >= begins[name] and ((one := of_stream.get(name)) or note.is_complete):
                points.append(BacklogPoint(note.minute, *((one.pending, one.ack_pending) if one else (0, 0))))
    return trend


async def _notes(jet: Streams, first: int, last: int) -> list[_Note]:
    """Return the notes of some minutes, oldest first; what cannot be read is none."""
    found: list[_Note] = []
    for data in (await jet.backend.call(MinuteNotes(first=first, last=last))).notes:
        with suppress(*UNREADABLE):
            found.append(_decode(data))
    return sorted((one for one in found if first <= one.minute <= last), key=lambda one: one.minute)
