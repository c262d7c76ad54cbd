"""Reads a stream of a store file in bulk, while others have it open: no engine, no wake-ups, only rows.

For short-lived processes that read much, such as Spark's. Nothing is written, so messages past their age are not
removed here: the engine that plans the read removes them first. Messages that expire between that and the read are
still read, unless another process has removed them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Self

from pelton.api import CorruptMessageError, NotAStoreError, StreamNotFoundError, api_error, rfc3339
from pelton.api.keys import Key, key_bytes
from pelton.engine.faults import public_error
from pelton.engine.settings import EngineSettings
from pelton.storage import (
    BulkRead,
    Database,
    Fault,
    Portion,
    SplitColumns,
    SumsOfColumns,
    find_stream,
    subject_condition,
    sums_of_columns,
)

_ROWS: Final = 8192
_BYTES: Final = 4 * 1024 * 1024


class BulkReader:
    """Reader of one stream of the store file ``path``; close it, or use it in a ``with``. For one thread.

    ``sums`` may be a faster :func:`~pelton.storage.sums_of_columns`, and ``split`` is what the fastest way needs.
    ``created`` is the creation time from the stream's info: a stream created later under the same name is refused.
    Raises StreamNotFoundError, NotAStoreError if there is no file, StoreKeyError and the other errors of opening.
    """

    def __init__(
        self,
        path: str,
        stream: str,
        created: str,
        *,
        filters: Sequence[str] = (),
        key: Key | None = None,
        sums: SumsOfColumns = sums_of_columns,
        split: SplitColumns | None = None,
    ) -> None:
        if not os.path.exists(path):
            raise NotAStoreError(path, "there is no such file on this host")
        self._stream = stream
        self._path = os.path.realpath(path)
        try:
            self._database = Database(self._path, key=key_bytes(key), unlocked=True)
        except Fault as fault:
            raise public_error(fault) from None
        found = find_stream(self._database, stream)
        if found is None or rfc3339(found.created) != created:
            self.close()
            raise self._gone()
        condition = subject_condition(filters)
        self._read = BulkRead(self._database, found.id, condition, limit=_ROWS, budget=_BYTES, sums=sums, split=split)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, first: int, last: int) -> Portion:
        """Return the next messages from ``first`` to at most ``last``; ``Portion.after`` is ``last`` at the end.

        At most 8,192 messages, or as many as reach 4 MiB. Raises StreamNotFoundError if the stream has been deleted.
        """
        try:
            return self._read.portion(first, last)
        except LookupError:
            raise self._gone() from None
        except Fault as fault:
            raise public_error(fault) from None

    def corrupt(self, seq: int) -> CorruptMessageError:
        """Return the error for a damaged message."""
        return CorruptMessageError(self._stream, seq, self._path)

    def _gone(self) -> StreamNotFoundError:
        error = api_error("JSStreamNotFoundErr", stream=self._stream)
        assert isinstance(error, StreamNotFoundError)
        return error

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._database.close()


def column_reader(settings: EngineSettings, stream: str, created: str, filters: Sequence[str]) -> BulkReader:
    """Return a reader that verifies and splits whole columns with numpy, which is loaded by the first of them."""
    from pelton.columns.joined_columns import split_columns, sums_of_columns

    return BulkReader(
        settings.path, stream, created, filters=filters, key=settings.key, sums=sums_of_columns, split=split_columns
    )
