"""What a stream may hold: append decision, limits, duplicates, expectations, removal."""

from pelton.streams.log import StreamLog
from pelton.streams.rules import check_stream, check_update
from pelton.streams.stored import stored_size

__all__ = ["StreamLog", "check_stream", "check_update", "stored_size"]
