"""Streams: appending, limits, deduplication, expectations, counters, batches, removal."""

from pelton.streams.appender import Packed as Packed
from pelton.streams.log import StreamLog as StreamLog
from pelton.streams.publish_checks import is_bare as is_bare
from pelton.streams.publish_checks import schedule_of as schedule_of
from pelton.streams.reads import DirectReads as DirectReads
from pelton.streams.reads import Look as Look
from pelton.streams.reads import corrupt_message as corrupt_message
from pelton.streams.reads import find_messages as find_messages
from pelton.streams.reads import last_headers_of as last_headers_of
from pelton.streams.reads import stored_message as stored_message
from pelton.streams.reads import subject_totals as subject_totals
from pelton.streams.reads import wire_message as wire_message
from pelton.streams.rules import changed_stream as changed_stream
from pelton.streams.rules import check_consumers as check_consumers
from pelton.streams.rules import check_copies as check_copies
from pelton.streams.rules import check_creation as check_creation
from pelton.streams.rules import check_new_stream as check_new_stream
from pelton.streams.rules import check_stream as check_stream
from pelton.streams.rules import check_time_pedantic as check_time_pedantic
from pelton.streams.staging import Staging as Staging
from pelton.streams.staging import append_atomic as append_atomic
from pelton.streams.staging import is_member as is_member
from pelton.streams.staging import spans_streams as spans_streams
from pelton.streams.state import IsWanted as IsWanted
from pelton.streams.state import Jumps as Jumps
from pelton.streams.state import StreamEnv as StreamEnv
