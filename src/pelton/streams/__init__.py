"""What a stream may hold: append decision, limits, duplicates, expectations, counters, batches, removal."""

from pelton.streams.atomic import append_atomic, spans_streams
from pelton.streams.blocks import without_headers
from pelton.streams.bulk import Bulk, Packed, bulk_of
from pelton.streams.changes import changed_stream, check_consumers
from pelton.streams.copying import CopyingLog
from pelton.streams.direct import DirectReads, stored_message
from pelton.streams.expect import is_bare
from pelton.streams.heads import heads_of
from pelton.streams.herald import Herald
from pelton.streams.log import StreamLog
from pelton.streams.rules import check_new_stream, check_stream
from pelton.streams.staging import Staging, is_member
from pelton.streams.time_rules import check_time_pedantic
from pelton.streams.wishes import NEVER

__all__ = [
    "NEVER",
    "Bulk",
    "CopyingLog",
    "DirectReads",
    "Herald",
    "Packed",
    "Staging",
    "StreamLog",
    "append_atomic",
    "bulk_of",
    "changed_stream",
    "check_consumers",
    "check_new_stream",
    "check_stream",
    "check_time_pedantic",
    "heads_of",
    "is_bare",
    "is_member",
    "spans_streams",
    "stored_message",
    "without_headers",
]
