"""Encodes rows as a stream's messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pelton.api import ConfigError, StreamConfig, headers
from pelton.columns import row_encoder as rows
from pelton.columns.row_encoder import ColumnTypes, EncodedRows, InputColumns, RowEncoder, ValueCheck
from pelton.subjects import compile_filter, is_subject

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_TOKEN: Final = re.compile(r"[^\s.*>\x00]+")
_IN_TEMPLATE: Final = (*rows.TEXT, *rows.INTEGERS, "date", "boolean")


class StreamEncoder(RowEncoder):
    """Encodes rows as messages of one stream. ``template`` makes subjects from other columns."""

    def __init__(self, types: ColumnTypes, config: StreamConfig, template: str | None) -> None:
        columns = InputColumns(types)
        if template is None:
            why = "add one, or set option subject to make it, such as 'flights.{carrier}'"
            columns.need("subject", rows.TEXT, why)
        self._parts = None if template is None else _parts(template, dict(types))
        self._has_headers = columns.take("headers", rows.HEADERS)
        self._has_id = columns.take("msg_id", rows.TEXT)
        self._has_ttl = columns.take("ttl", rows.INTEGERS)
        used = [text for text, is_column in self._parts or () if is_column]
        self._rest = columns.payload("data", rows.BYTES, used)
        check_ttl(config, self._has_ttl)
        if config.mirror is not None:
            raise ConfigError(f"stream {config.name!r} is a mirror: write to its origin, {config.mirror.name!r}")
        self._stream, self._filters = config.name, list(config.subjects)

    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        """Return one message for each row."""
        subjects = self._subjects(batch)
        ttl = rows.seconds(rows.optional(batch, "ttl", self._has_ttl))
        ids = rows.optional(batch, "msg_id", self._has_id)
        given = rows.optional(batch, "headers", self._has_headers)
        blocks = rows.blocks(len(subjects), ((headers.MSG_ID, ids), (headers.TTL, ttl)), given)
        return EncodedRows(subjects, rows.payloads(batch, "data", self._rest), blocks)

    def _subjects(self, batch: pa.RecordBatch) -> pa.StringArray:
        if self._parts is None:
            column = rows.text_of(rows.without_nulls(batch, "subject"))
        else:
            column = pc.binary_join_element_wise(*[self._part(batch, *part) for part in self._parts], "")
        if isinstance(column, pa.Scalar):
            column = pa.repeat(column, batch.num_rows)
        self._checked(column)
        return column

    def _part(self, batch: pa.RecordBatch, text: str, is_column: bool) -> pa.Array | pa.Scalar:
        if not is_column:
            return pa.scalar(text)
        column = rows.text_of(rows.without_nulls(batch, text))
        for value in pc.unique(column).to_pylist():
            if not _TOKEN.fullmatch(value):
                raise ConfigError(
                    f"column {text} is {value[:60]!r}, which cannot be one part of a subject: use no blanks, dots, "
                    "* and >, and not empty; make a column subject yourself to write it otherwise"
                )
        return column

    @cached_property
    def _checked(self) -> ValueCheck:
        # Each task makes its own, because it cannot be pickled.
        where = "column subject" if self._parts is None else "option subject"
        return ValueCheck(_Check(self._stream, self._filters, where))


class _Check:
    """Raises ConfigError for a subject that is invalid, or that the stream does not accept."""

    def __init__(self, stream: str, filters: Sequence[str], where: str) -> None:
        self._stream, self._filters, self._where = stream, filters, where
        self._tests = [compile_filter(text) for text in filters]

    def __call__(self, subject: str) -> None:
        if not is_subject(subject):
            raise ConfigError(f"{self._where} makes {subject[:60]!r}, not a subject: write it like orders.eu.1")
        if not any(test(subject) for test in self._tests):
            taken = ", ".join(self._filters) or "none"
            raise ConfigError(
                f"{self._where} makes {subject!r}, which stream {self._stream!r} does not take (it takes {taken})"
            )


def check_ttl(config: StreamConfig, wanted: bool) -> None:
    """Raise ConfigError if messages should have a TTL but the stream does not allow one."""
    if wanted and not config.allow_msg_ttl:
        raise ConfigError(f"column ttl: stream {config.name!r} has no allow_msg_ttl; update it, or drop the column")


def _parts(template: str, types: Mapping[str, str]) -> list[tuple[str, bool]]:
    """Return a template's parts: texts and column names, distinguished by the flag. Raises ConfigError."""
    parts: list[tuple[str, bool]] = []
    for index, piece in enumerate(_FIELD.split(template)):
        if index % 2 == 0:
            if "{" in piece or "}" in piece:
                raise ConfigError(f"option subject is {template!r}: write columns as {{name}}")
            parts += [(piece, False)] if piece else []
            continue
        if piece not in types:
            raise ConfigError(f"option subject is {template!r}: there is no column {piece!r}")
        if types[piece] not in _IN_TEMPLATE:
            raise ConfigError(f"option subject: column {piece} is {types[piece]}; cast it to string")
        parts.append((piece, True))
    if not is_subject("".join("x" if is_column else text for text, is_column in parts)):
        raise ConfigError(f"option subject is {template!r}: write it like 'orders.{{country}}.{{id}}'")
    return parts
