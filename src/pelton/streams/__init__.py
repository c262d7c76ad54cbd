"""What a stream may hold: append decision, limits, duplicates, expectations, removal."""

from pelton.streams.log import StreamLog, stored_size
from pelton.streams.rules import check_stream, check_update

__all__ = ["StreamLog", "check_stream", "check_update", "stored_size"]
