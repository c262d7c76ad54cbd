"""What a publisher asks for in headers.

Message id and the ``Nats-Expected-*`` conditions (ADR-4, ADR-8). Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pelton.api import headers

_MARK: Final = b"Nats-"
_NO_SEQUENCE: Final = -1


class Expectations(NamedTuple):
    """The conditions of one message; None or empty where not asked."""

    msg_id: str = ""
    stream: str = ""
    last_msg_id: str | None = None
    last_seq: int | None = None
    last_subject_seq: int | None = None
    last_subject_filter: str = ""


def expectations(block: bytes | None) -> Expectations | None:
    """Read the conditions of an encoded header block; None when there are none."""
    if block is None or _MARK not in block:
        return None
    found = Expectations(
        msg_id=headers.first(block, headers.MSG_ID) or "",
        stream=headers.first(block, headers.EXPECTED_STREAM) or "",
        last_msg_id=headers.first(block, headers.EXPECTED_LAST_MSG_ID),
        last_seq=_sequence(block, headers.EXPECTED_LAST_SEQUENCE),
        last_subject_seq=_sequence(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE),
        last_subject_filter=headers.first(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT) or "",
    )
    return None if found == Expectations() else found


def _sequence(block: bytes, name: str) -> int | None:
    text = headers.first(block, name)
    if not text:
        return None
    # What is no sequence equals none: like nats-server, answer with the one there is.
    return int(text) if text.isascii() and text.isdigit() else _NO_SEQUENCE
