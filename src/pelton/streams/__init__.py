"""Streams: appending, limits, deduplication, expectations, counters, batches, removal."""

from pelton.streams.advisories import Advisories
from pelton.streams.appender import Packed
from pelton.streams.atomic import append_atomic, spans_streams
from pelton.streams.blocks import without_headers
from pelton.streams.changes import changed_stream, check_consumers
from pelton.streams.checked_bulk import PlannedMessage
from pelton.streams.direct import DirectReads, stored_message, wire_message
from pelton.streams.effects import StreamEffects
from pelton.streams.env import CheckQuota, IsWanted, StreamEnv
from pelton.streams.last_headers import last_headers_of
from pelton.streams.log import StreamLog
from pelton.streams.looks import Look, find_messages, subject_totals
from pelton.streams.publish_checks import is_bare, schedule_of
from pelton.streams.rules import check_copies, check_creation, check_new_stream, check_stream, check_time_pedantic
from pelton.streams.staging import Staging, is_member
from pelton.streams.state import Jumps

__all__ = [
    "Advisories",
    "CheckQuota",
    "DirectReads",
    "IsWanted",
    "Jumps",
    "Look",
    "Packed",
    "PlannedMessage",
    "Staging",
    "StreamEffects",
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
    "without_headers",
]
