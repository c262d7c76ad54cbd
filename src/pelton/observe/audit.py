"""Who did what: each action of the dashboard and of the command line is a message of the stream ``PELTON_AUDIT``.

The stream is created with the first action. Its messages cannot be deleted one by one; the oldest leave when there are
more than a hundred thousand.
"""

from __future__ import annotations

import logging
from typing import Final, Literal

import msgspec

from pelton.api import NoStreamForSubjectError, PeltonError, StreamConfig, StreamNotFoundError
from pelton.connect import Jet
from pelton.jet.stream import AUDIT_STREAM

AUDIT_SUBJECTS: Final = "$PELTON.AUDIT.*"
_MOST: Final = 100_000
_PAGE: Final = 256
_log: Final = logging.getLogger("pelton.observe")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action."""

    who: str
    """The name of the viewer's token, or the user of the machine; empty for a viewer without a token."""
    source: Literal["page", "command"]
    """Where it was done: on the dashboard, or by the command line."""
    action: str
    """What was done, in the words of the command line or of the page."""
    origin: str = ""
    """The address of the viewer, or the host of the command."""
    target: str = ""
    """What it was done to, such as ``shop`` or ``shop 1f3a``; of a command, its arguments."""
    result: str = ""
    """What came of it, and how many."""
    error: str = ""
    """Why it failed; empty if it did not."""
    at: str = ""
    """When, as RFC 3339 text; set when it is read."""


async def record_action(jet: Jet, entry: AuditEntry) -> None:
    """Store the ``entry`` of an action. It stays done: what keeps the entry from being stored is logged."""
    data = msgspec.json.encode(entry)
    subject = f"$PELTON.AUDIT.{entry.source}"
    try:
        try:
            await jet.publish(subject, data, expected_stream=AUDIT_STREAM)
        except NoStreamForSubjectError:
            await jet.create_stream(
                StreamConfig(
                    name=AUDIT_STREAM, subjects=(AUDIT_SUBJECTS,), max_msgs=_MOST, deny_delete=True, allow_direct=True
                )
            )
            await jet.publish(subject, data, expected_stream=AUDIT_STREAM)
    except PeltonError as error:
        _log.warning("%r by %s could not be written to %s: %s", entry.action, entry.who, AUDIT_STREAM, error)


async def audit_entries(jet: Jet, *, limit: int = 50, before: int = 0) -> list[tuple[int, AuditEntry]]:
    """Return the newest ``limit`` actions, each with its sequence, the newest first; ``before``: older ones."""
    try:
        stream = await jet.stream(AUDIT_STREAM)
        state = (await stream.info()).state
    except StreamNotFoundError:
        return []
    found: list[tuple[int, AuditEntry]] = []
    upto = min(before or state.last_seq + 1, state.last_seq + 1)
    while upto > state.first_seq and len(found) < limit:
        begin = max(upto - min(limit - len(found), _PAGE), state.first_seq)
        messages = await stream.get_messages(upto - begin, seq=begin)
        part = [(one.seq, _entry_of(one.data, one.time)) for one in messages if one.seq < upto]
        found += reversed(part)
        upto = begin
    return found[:limit]


def _entry_of(data: bytes, at: str) -> AuditEntry:
    try:
        return msgspec.structs.replace(msgspec.json.decode(data, type=AuditEntry), at=at)
    except msgspec.DecodeError:
        return AuditEntry(who="", source="command", action="(a message that is no action)", at=at)
