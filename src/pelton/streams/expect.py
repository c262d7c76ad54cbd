"""What a publisher asks for in headers.

Message id and the ``Nats-Expected-*`` conditions (ADR-4, ADR-8): how they are read, and whether they hold. In which
order they are asked is in ``judging.py``. A header without a value asks for nothing. What is no sequence equals none:
like nats-server, the refusal tells the one there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from pelton.api import api_error, headers
from pelton.subjects import is_filter

# Every header of NATS's own may ask for something, but these: a republished message is marked with them.
_ASKS: Final = re.compile(rb"\nNats-(?!(?:Stream|Subject|Sequence|Time-Stamp|Last-Sequence|Msg-Size):)")
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
    return block is None or (len(block) <= headers.LARGEST and _ASKS.search(block) is None)


def expectations(block: bytes | None) -> Expectations | None:
    """Read the conditions of an encoded header block; None when there are none.

    Raises ApiError 10097 for a block that is larger than any server takes.
    """
    if block is None or is_bare(block):
        return None
    if len(block) > headers.LARGEST:
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


class Batch:
    """Conditions inside a batch that is stored as one (ADR-50): they are about the stream before it.

    ``base`` was the stream's last sequence then, ``lasts`` holds that of each subject or filter with a condition.
    """

    def __init__(self, base: int, lasts: Mapping[str, int]) -> None:
        self._base = base
        self._lasts = lasts
        self.written: set[str] = set()

    def check(self, stream: Known, asked: Expectations, subject: str) -> None:
        """Raise where a condition fails, or is about what the batch itself has written."""
        if asked.last_seq is not None:
            if asked.last_seq != stream.last:
                raise api_error("JSStreamWrongLastSequenceErrF", seq=stream.last)
            if stream.last != self._base:
                raise api_error("JSStreamWrongLastSequenceConstantErr")
        if asked.last_subject_seq is None:
            if asked.last_subject_filter:
                raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
            return
        wanted = asked.last_subject_filter or subject
        if wanted in self.written:
            raise api_error("JSStreamWrongLastSequenceConstantErr")
        if self._lasts[wanted] != asked.last_subject_seq:
            raise api_error("JSStreamWrongLastSequenceErrF", seq=self._lasts[wanted])

    def check_rollup(self, kind: str, subject: str) -> None:
        """Raise where a roll-up would take messages of the batch along (10111)."""
        if self.written if kind == "all" else subject in self.written:
            raise api_error("JSStreamRollupFailedF", err=f"batch rollup {kind} invalid")


def check_stream(stream: Known, asked: Expectations) -> None:
    """Raise where another stream is expected (10060)."""
    if asked.stream and asked.stream != stream.name:
        raise api_error("JSStreamNotMatchErr")


def check_source(asked: Expectations) -> None:
    """Raise where a message says that it comes from a source (10227): only what a stream takes from another one may."""
    if asked.source:
        raise api_error("JSMessageSourceHdrNotAllowedErr")


def check_sequences(stream: Known, asked: Expectations, subject: str) -> None:
    """Raise where a last sequence is not the expected one (10071)."""
    if asked.last_subject_seq is not None:
        last = last_expected_of(stream, asked.last_subject_filter or subject)
        if last != asked.last_subject_seq:
            raise api_error("JSStreamWrongLastSequenceErrF", seq=last)
    if asked.last_seq is not None and asked.last_seq != stream.last:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=stream.last)


def check_last_id(stream: Known, asked: Expectations) -> None:
    """Raise where the last message id is not the expected one (10070)."""
    if asked.last_msg_id and asked.last_msg_id != (known := stream.last_id()):
        raise api_error("JSStreamWrongLastMsgIDErrF", id=known)


def last_expected_of(stream: Known, subject_filter: str) -> int:
    """Return the last sequence of what a condition is about."""
    return stream.last_seq_of(subject_filter) if is_filter(subject_filter) else 0


def _sequence(block: bytes, name: str) -> int | None:
    text = headers.first(block, name)
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _SEQUENCE_DIGITS
    return int(text) if is_number else _NO_SEQUENCE
