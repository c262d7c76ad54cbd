"""Values as JSON that decode to the types that were declared for them, or are refused. Pure.

JSON encodes types it has no form for as text: bytes, dates, UUIDs, decimals, and every key of an object. If text is
declared, such a value would pass every check, and decode to a different one.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from pelton.api import JobResultError
from pelton.api.json_values import to_json
from pelton.queue.define.job_codec import JobCodec, decoded_with, encoded_with
from pelton.queue.model.states import NOTHING

_PLAIN: Final = (str, int, float, bool, type(None))
# Text for bytes would be read as base64. For the others, text is their own form: 2026-01-02 for a date.
_BYTES: Final = (bytes, bytearray)
_WRITTEN_AS_TEXT: Final = (*_BYTES, datetime, date, time, timedelta, UUID, Decimal)


def bent(value: object, kind: Any) -> str:
    """Return why a value that JSON can hold would decode to a different one under the type ``kind``, or empty."""
    try:
        msgspec.convert(msgspec.to_builtins(value, builtin_types=_WRITTEN_AS_TEXT), kind, builtin_types=_BYTES)
    except msgspec.ValidationError as error:
        return str(error)
    except TypeError:
        # Already JSON: msgspec.Raw.
        pass
    return ""


def encoded_result(job: str, result: object) -> msgspec.Raw:
    """Return a job's result as JSON. Raises JobResultError."""
    if result is None:
        return NOTHING
    try:
        return msgspec.Raw(to_json(result))
    except Exception as error:  # a result's own code may run, and raise anything
        raise JobResultError(job, f"{type(error).__name__}: {error}") from error


class ResultCodec:
    """Results of one job, whose function declares ``kind``; Any if nothing is declared."""

    def __init__(self, job: str, kind: Any, codec: JobCodec | None = None) -> None:
        self._job = job
        self._codec = codec
        self._kind = kind
        try:
            self._decode = None if kind in (Any, object) else msgspec.json.Decoder(kind).decode
        except TypeError:
            # A type that JSON does not know; the returned value may still be storable.
            self._decode = None

    def encode(self, result: object) -> msgspec.Raw:
        """Return a result as JSON. Raises JobResultError if JSON cannot hold it, or would change it."""
        if self._codec is not None:
            try:
                return NOTHING if result is None else msgspec.Raw(encoded_with(self._codec, result))
            except Exception as error:  # a codec is the program's own
                raise JobResultError(self._job, f"{type(error).__name__}: {error}") from error
        encoded = encoded_result(self._job, result)
        is_plain = type(result) is self._kind and self._kind in _PLAIN
        if self._decode is None or is_plain or not (why := bent(result, self._kind)):
            return encoded
        try:
            self._decode(encoded)
        except msgspec.DecodeError:
            # The annotation is of another type altogether, so the two cannot be confused.
            return encoded
        raise JobResultError(self._job, why)

    def decode(self, encoded: msgspec.Raw | bytes) -> object:
        """Return a result as its declared type. Raises JobResultError if it is of another one."""
        if self._codec is not None and bytes(encoded) != bytes(NOTHING):
            try:
                return decoded_with(self._codec, encoded, self._kind)
            except Exception as error:  # a codec is the program's own
                raise JobResultError(self._job, f"{type(error).__name__}: {error}") from error
        if self._decode is None:
            return msgspec.json.decode(encoded)
        try:
            return self._decode(encoded)
        except msgspec.ValidationError as error:
            raise JobResultError(self._job, str(error)) from error
