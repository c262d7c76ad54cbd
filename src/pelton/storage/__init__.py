"""Rows on disk: SQLite files, group commit, schema, integrity. It knows rows, not their meaning."""

from pelton.storage.begun_marks import BegunMarks, StreamMarks
from pelton.storage.bulk import SUM_DIGITS, BulkRead, Joined, Portion, Split, SplitColumns, StreamId, find_stream
from pelton.storage.committer import Committer, Participant, SyncMode, Work
from pelton.storage.copies import raise_token_floor, token_floor
from pelton.storage.database import Database, SnapshotOnlyError
from pelton.storage.faults import FINAL_FAULTS, ConnectionEnd, Fault, FaultKind, as_fault, translated
from pelton.storage.messages import (
    FIELD,
    Columns,
    Condition,
    FastGet,
    MessageTable,
    Removed,
    all_intact,
    intact,
    runs,
    subject_condition,
)
from pelton.storage.read_only import CopiedDatabase, ReadOnlyDatabase, ReadSql
from pelton.storage.rows import (
    DamagedRowError,
    MessageRow,
    PlacedSums,
    RowValues,
    SumsOfColumns,
    blob,
    column,
    decoded,
    integer,
    integers,
    placed_sums,
    rows_with_checksums,
    sums_of_columns,
    text,
)
from pelton.storage.schema import SCHEMA_VERSION, TOKEN_EPOCH, message_table
from pelton.storage.spool import Spool
from pelton.storage.store_file import OWNER_ONLY
from pelton.storage.troubles import Trouble, Troubles
from pelton.storage.user_sql import Refusal, UserSql
from pelton.storage.wake import MemoryChannel, WakeChannel, may_run
from pelton.storage.wal import Medium, sync_to_disk
from pelton.storage.write_lock import Writer

__all__ = [
    "FIELD",
    "FINAL_FAULTS",
    "OWNER_ONLY",
    "SCHEMA_VERSION",
    "SUM_DIGITS",
    "TOKEN_EPOCH",
    "BegunMarks",
    "BulkRead",
    "Columns",
    "Committer",
    "Condition",
    "ConnectionEnd",
    "CopiedDatabase",
    "DamagedRowError",
    "Database",
    "FastGet",
    "Fault",
    "FaultKind",
    "Joined",
    "Medium",
    "MemoryChannel",
    "MessageRow",
    "MessageTable",
    "Participant",
    "PlacedSums",
    "Portion",
    "ReadOnlyDatabase",
    "ReadSql",
    "Refusal",
    "Removed",
    "RowValues",
    "SnapshotOnlyError",
    "Split",
    "SplitColumns",
    "Spool",
    "StreamId",
    "StreamMarks",
    "SumsOfColumns",
    "SyncMode",
    "Trouble",
    "Troubles",
    "UserSql",
    "WakeChannel",
    "Work",
    "Writer",
    "all_intact",
    "as_fault",
    "blob",
    "column",
    "decoded",
    "find_stream",
    "intact",
    "integer",
    "integers",
    "may_run",
    "message_table",
    "placed_sums",
    "raise_token_floor",
    "rows_with_checksums",
    "runs",
    "subject_condition",
    "sums_of_columns",
    "sync_to_disk",
    "text",
    "token_floor",
    "translated",
]
