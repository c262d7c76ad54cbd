"""What a publisher asks for in headers.

Message id and the ``Nats-Expected-*`` conditions (ADR-4, ADR-8): how they are read, and whether they hold. A
header without a value asks for nothing. What is no sequence equals none: like nats-server, the refusal tells the
one there is.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

from pelton.api import api_error, headers
from pelton.subjects import is_filter

# Every header of NATS's own may ask for something, but these: a republished message is marked with them.
_ASKS: Final = re.compile(rb"\nNats-(?!(?:Stream|Subject|Sequence|Time-Stamp|Last-Sequence|Msg-Size):)")
_LIMIT: Final = 65_535
_NO_SEQUENCE: Final = -1
_SEQUENCE_DIGITS: Final = 20


class Expectations(NamedTuple):
    """The conditions of one message; None or empty where not asked."""

    msg_id: str = ""
    stream: str = ""
    last_msg_id: str = ""
    last_seq: int | None = None
    last_subject_seq: int | None = None
    last_subject_filter: str = ""
    source: str = ""


_NOTHING: Final = Expectations()


class Known(Protocol):
    """What must be known of a stream to judge conditions."""

    @property
    def name(self) -> str: ...
    @property
    def last(self) -> int: ...
    def last_seq_of(self, subject_filter: str) -> int: ...
    def known_id(self, msg_id: str, now: int) -> int | None: ...
    def last_id(self) -> str: ...


def is_bare(block: bytes | None) -> bool:
    """Whether a header block asks for nothing, so that its message is stored as plainly as one without."""
    return block is None or (len(block) <= _LIMIT and _ASKS.search(block) is None)


def expectations(block: bytes | None) -> Expectations | None:
    """Read the conditions of an encoded header block; None when there are none.

    Raises ApiError 10097 for a block that is larger than any server takes.
    """
    if block is None or is_bare(block):
        return None
    if len(block) > _LIMIT:
        raise api_error("JSStreamHeaderExceedsMaximumErr")
    found = Expectations(
        msg_id=headers.first(block, headers.MSG_ID) or "",
        stream=headers.first(block, headers.EXPECTED_STREAM) or "",
        last_msg_id=headers.first(block, headers.EXPECTED_LAST_MSG_ID) or "",
        last_seq=_sequence(block, headers.EXPECTED_LAST_SEQUENCE),
        last_subject_seq=_sequence(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE),
        last_subject_filter=headers.first(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT) or "",
        source=headers.first(block, headers.STREAM_SOURCE) or "",
    )
    return None if found == _NOTHING else found


def check_expectations(stream: Known, asked: Expectations, subject: str, now: int) -> int | None:
    """Raise where a condition fails; return the sequence of the original when this is a duplicate.

    The order is that of nats-server 2.15, but that it looks at the sequences before the duplicate: here repeating
    a publish that was stored is harmless, whatever it expected.
    """
    if asked.stream and asked.stream != stream.name:
        raise api_error("JSStreamNotMatchErr")
    if asked.source:
        # Only what a stream takes from another one may say so.
        raise api_error("JSMessageSourceHdrNotAllowedErr")
    if asked.last_subject_seq is None and asked.last_subject_filter:
        raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
    if asked.msg_id and (duplicate := stream.known_id(asked.msg_id, now)) is not None:
        return duplicate
    if asked.last_subject_seq is not None:
        subject = asked.last_subject_filter or subject
        last = stream.last_seq_of(subject) if is_filter(subject) else 0
        if last != asked.last_subject_seq:
            raise api_error("JSStreamWrongLastSequenceErrF", seq=last)
    if asked.last_seq is not None and asked.last_seq != stream.last:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=stream.last)
    if asked.last_msg_id and asked.last_msg_id != (known := stream.last_id()):
        raise api_error("JSStreamWrongLastMsgIDErrF", id=known)
    return None


def _sequence(block: bytes, name: str) -> int | None:
    text = headers.first(block, name)
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _SEQUENCE_DIGITS
    return int(text) if is_number else _NO_SEQUENCE
