"""Streams: appending, limits, deduplication, expectations, counters, batches, removal."""

from pelton.streams.appender import Packed
from pelton.streams.checked_bulk import PlannedMessage
from pelton.streams.log import StreamLog
from pelton.streams.publish_checks import is_bare, schedule_of
from pelton.streams.reads import (
    DirectReads,
    Look,
    find_messages,
    last_headers_of,
    stored_message,
    subject_totals,
    wire_message,
)
from pelton.streams.rules import (
    changed_stream,
    check_consumers,
    check_copies,
    check_creation,
    check_new_stream,
    check_stream,
    check_time_pedantic,
)
from pelton.streams.staging import Staging, append_atomic, is_member, spans_streams
from pelton.streams.state import IsWanted, Jumps, StreamEnv

__all__ = [
    "DirectReads",
    "IsWanted",
    "Jumps",
    "Look",
    "Packed",
    "PlannedMessage",
    "Staging",
    "StreamEnv",
    "StreamLog",
    "append_atomic",
    "changed_stream",
    "check_consumers",
    "check_copies",
    "check_creation",
    "check_new_stream",
    "check_stream",
    "check_time_pedantic",
    "find_messages",
    "is_bare",
    "is_member",
    "last_headers_of",
    "schedule_of",
    "spans_streams",
    "stored_message",
    "subject_totals",
    "wire_message",
]
