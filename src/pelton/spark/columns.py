"""Rows and messages as Spark and Arrow have them: the schema of a read, and messages packed for a bulk append.

**Packs messages from Arrow for a store's bulk append, with at most one Python object for each row.** That object is the
payload, while its checksum is computed. Everything else is columnar: distinct subjects once, and rows as indices into
them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from pelton.api import ConfigError
from pelton.columns.arrow_batches import ERROR, VALUE, Decode
from pelton.columns.row_encoder import ColumnTypes
from pelton.storage import FIELD, Columns
from pelton.streams import Packed

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A header can occur several times, and every value counts.
_COLUMNS: Final = {
    "stream": "string",
    "subject": "string",
    "sequence": "bigint",
    "time": "timestamp",
    "headers": "map<string,array<string>>",
    "data": "binary",
    "size": "bigint",
}
_WHOLE_TYPE: Final = re.compile(r"\s*(\w+|(struct|array|map)\s*<.*|\w+\s*\([\d\s,]+\))\s*", re.IGNORECASE | re.DOTALL)


def read_schema(decode: Decode | None, value_schema: str | None) -> str:
    """Return all columns: the columns of every message and, if payloads are decoded, ``value`` and ``error``.

    As DDL text, which Spark parses, because the process that asks has no session for that; and as one type, so that
    Spark's parser names what is wrong in ``value_schema``. Raises ConfigError.
    """
    columns = [f"{name}: {kind}{'' if name == 'headers' else ' NOT NULL'}" for name, kind in _COLUMNS.items()]
    if decode is not None:
        columns += [f"{VALUE}: {_value_type(decode, value_schema)}", f"{ERROR}: string"]
    elif value_schema is not None:
        raise ConfigError("valueSchema needs decode: set decode=json or msgpack too")
    return f"struct<{', '.join(columns)}>"


def _value_type(decode: Decode, value_schema: str | None) -> str:
    if decode == "text":
        return "string"
    if value_schema is None:
        raise ConfigError(f"decode={decode} needs valueSchema, such as 'id BIGINT, amount DOUBLE', or a schema")
    return value_schema if _WHOLE_TYPE.fullmatch(value_schema) else f"struct<{value_schema}>"


def checked_schema(schema: StructType, decode: Decode | None) -> StructType:
    """Return a user's schema unchanged. Raises ConfigError for an unknown column or a wrong type."""
    for field in schema:
        kind = field.dataType.simpleString()
        if decode is not None and field.name in (VALUE, ERROR):
            continue
        if field.name not in _COLUMNS:
            known = ", ".join([*_COLUMNS, *([VALUE, ERROR] if decode else [])])
            raise ConfigError(f"there is no column {field.name!r}: a message has {known}")
        if kind != _COLUMNS[field.name]:
            raise ConfigError(f"column {field.name} is {_COLUMNS[field.name]}, not {kind}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares our batches with."""
    return to_arrow_schema(schema, timezone="UTC")


def sql_types(schema: StructType) -> ColumnTypes:
    return [(field.name, field.dataType.simpleString()) for field in schema]


Numbers = np.ndarray[Any, np.dtype[Any]]

_LONGEST_SUBJECT: Final = 0xFF
_SHIFT: Final = 8
_SUBJECTS_END: Final = 1 << 24
_PAYLOADS_END: Final = 10**FIELD - 1
# Each portion counts its own subjects, so that it is worth joining Spark's batches of 10,000 rows, as long as the
# portion stays in the CPU's cache.
_FEW_ROWS: Final = 24_576
_FEW_BYTES: Final = 4 * 1024 * 1024
# This many payloads stay in the CPU's cache, which makes their checksums a quarter faster.
_NEAR_ROWS: Final = 1024
_BYTES: Final = 8 * 1024 * 1024


def rebatch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches and split large ones, so that each is worth its overhead and none fills the memory."""
    few: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        few.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _FEW_ROWS or size >= _FEW_BYTES:
            yield from _cut(_join(few))
            few, rows, size = [], 0, 0
    if rows:
        yield from _cut(_join(few))


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= _BYTES or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _cut(part)


def pack(subjects: pa.StringArray, payloads: pa.BinaryArray) -> Packed | None:
    """Return packed messages without headers; None if a subject or all payloads together are too long for that."""
    coded = subjects.dictionary_encode()
    ends, texts = _offsets(coded.dictionary), coded.dictionary
    lengths = np.diff(ends)
    if lengths.max() > _LONGEST_SUBJECT or ends[-1] - ends[0] >= _SUBJECTS_END:
        return None
    codes = coded.indices.to_numpy()
    cuts = _offsets(payloads)
    if cuts[-1] - cuts[0] > _PAYLOADS_END:
        return None
    length, pieces = _pieces(cuts)
    spots = (ends[:-1] - ends[0]).astype(np.uint32) << _SHIFT | lengths.astype(np.uint32)
    columns = Columns(
        len(subjects),
        _between(texts, ends),
        memoryview(spots[codes]).cast("B"),
        _between(payloads, cuts),
        length,
        pieces,
        memoryview(_contents(texts, codes, payloads)).cast("B"),
    )
    counts = np.bincount(codes, minlength=len(texts))
    size = int(cuts[-1] - cuts[0] + (lengths * counts).sum())
    return Packed(columns, size, texts.to_pylist(), *_bounds(codes, len(texts)), counts.tolist())


def _offsets(values: pa.Array) -> Numbers:
    """Return the offsets of a string or binary array: where each value begins, and where the last one ends."""
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _between(values: pa.Array, ends: Numbers) -> memoryview:
    return memoryview(values.buffers()[2] or b"")[ends[0] : ends[-1]]


def _pieces(cuts: Numbers) -> tuple[int, memoryview]:
    """Return the length of all payloads; if lengths differ, -1 and the position of each in digits."""
    lengths = np.diff(cuts)
    length = int(lengths[0])
    if (lengths == length).all():
        return length, memoryview(b"")
    begins = (cuts[:-1] - cuts[0]).astype(np.int64) + 1
    digits = pc.cast(pa.array(10 ** (2 * FIELD) + begins * 10**FIELD + lengths), pa.string())
    return -1, memoryview(digits.buffers()[2])


def _contents(texts: pa.StringArray, codes: Numbers, payloads: pa.BinaryArray) -> array[int]:
    begun = np.fromiter(map(crc32, texts.cast(pa.binary()).to_pylist()), np.uint32, len(texts))[codes]
    sums = array("I")
    for first in range(0, len(codes), _NEAR_ROWS):
        few = slice(first, first + _NEAR_ROWS)
        sums.extend(map(crc32, payloads[few].to_pylist(), begun[few].tolist()))
    return sums


def _bounds(codes: Numbers, subjects: int) -> tuple[list[int], list[int]]:
    """Return the first and the last row of each subject."""
    places = np.arange(len(codes))
    firsts, lasts = np.empty(subjects, np.int64), np.empty(subjects, np.int64)
    # If an index occurs several times, the last assignment wins.
    lasts[codes] = places
    firsts[codes[::-1]] = places[::-1]
    return firsts.tolist(), lasts.tolist()
