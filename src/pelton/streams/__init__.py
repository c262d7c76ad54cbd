"""What a stream may hold: append decision, limits, duplicates, expectations, removal."""

from pelton.streams.changes import changed_stream, check_consumers
from pelton.streams.direct import DirectReads, stored_message
from pelton.streams.expect import is_bare
from pelton.streams.herald import Herald
from pelton.streams.log import StreamLog
from pelton.streams.rules import check_new_stream, check_stream
from pelton.streams.stored import stored_size

__all__ = [
    "DirectReads",
    "Herald",
    "StreamLog",
    "changed_stream",
    "check_consumers",
    "check_new_stream",
    "check_stream",
    "is_bare",
    "stored_message",
    "stored_size",
]
