"""Reads a stream of a store file in bulk, while others have it open: no engine, no wake-ups, only rows.

For short-lived processes that read much, such as Spark's. Nothing is written, so messages past their age are not
removed here: the engine that plans the read removes them first. Messages that expire between that and the read are
still read, unless another process has removed them.

**Loads messages into a store in two steps: many processes stage them in files, one loads all files at once.** Staging
does not touch the store, so a process that fails, or is redundant, leaves only a file behind. Loading is one
transaction (:func:`load`): other writers wait for it, and readers see the store as it was until it commits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, Self

import msgspec

from pelton.api import (
    CorruptMessageError,
    NotAStoreError,
    Outgoing,
    StreamNotFoundError,
    Transacting,
    api_error,
    rfc3339,
)
from pelton.api.keys import Key, key_bytes
from pelton.engine.connections import EngineSettings
from pelton.engine.host import public_error
from pelton.engine.transactions import OpenTransaction
from pelton.storage import Database, Fault, PlacedSums, SumsOfColumns, placed_sums, subject_condition, sums_of_columns
from pelton.storage.bulk import BulkRead, Portion, SplitColumns, find_stream
from pelton.storage.older_schemas import show_as_present
from pelton.storage.spool import Spool
from pelton.streams import Packed, corrupt_message

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
            self._database = Database(self._path, key=key_bytes(key), unlocked=True, goal=0)
            # Looking migrates nothing (ADR 0037).
            show_as_present(self._database.connection, self._database.schema)
        except Fault as fault:
            raise public_error(fault) from None
        found = find_stream(self._database, stream)
        if found is None or rfc3339(found.created) != created:
            self.close()
            raise self._gone_error()
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
            raise self._gone_error() from None
        except Fault as fault:
            raise public_error(fault) from None

    def corrupt(self, seq: int) -> CorruptMessageError:
        return corrupt_message(self._stream, seq, self._path)

    def _gone_error(self) -> StreamNotFoundError:
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


_STAGED_BYTES: Final = 8 * 1024 * 1024
_STAGED_ROWS: Final = 32_768
_STAGED_OVERHEAD: Final = 64


class _Portion(msgspec.Struct, array_like=True, gc=False):
    """Messages by columns: packed, or one list per field."""

    packed: Packed | None = None
    subjects: list[str] = []
    payloads: list[bytes] = []
    blocks: list[bytes | None] = []

    def messages(self) -> list[Outgoing]:
        if self.packed is not None:
            return self.packed.messages()
        return list(map(Outgoing, self.subjects, self.payloads, self.blocks))


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Portion).decode


class StagedWriter:
    """Writes the new staged file ``path``, in a ``with``: if the block raises, the file is not valid."""

    def __init__(self, path: str, key: Key | None = None) -> None:
        self._spool = _open_spool(path, key, new=True)
        self._empty()

    def _empty(self) -> None:
        self._subjects: list[str] = []
        self._payloads: list[bytes] = []
        self._blocks: list[bytes | None] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._finish()
        self._spool.close()

    def _finish(self) -> None:
        self._flush()
        try:
            self._spool.finish()
        except Fault as fault:
            raise public_error(fault) from fault

    def add(
        self, subjects: Sequence[str], payloads: Sequence[bytes], blocks: Sequence[bytes | None] | None = None
    ) -> None:
        """Stage messages: subjects, payloads and, if there are any, encoded header blocks."""
        size = sum(map(len, payloads))
        if size > _STAGED_BYTES and len(payloads) > 1:
            half = len(payloads) // 2
            for part in (slice(half), slice(half, None)):
                self.add(subjects[part], payloads[part], None if blocks is None else blocks[part])
            return
        self._blocks += blocks if blocks is not None else [None] * len(subjects)
        self._bytes += sum(map(len, filter(None, blocks or ())))
        self._subjects += subjects
        self._payloads += payloads
        self._bytes += size + _STAGED_OVERHEAD * len(subjects)
        if self._bytes >= _STAGED_BYTES or len(self._subjects) >= _STAGED_ROWS:
            self._flush()

    def add_packed(self, packed: Packed) -> None:
        """Stage messages without headers, at most a few MiB: it takes a fraction of the work, as does loading them."""
        self._flush()
        self._write(_Portion(packed))

    def _flush(self) -> None:
        if self._subjects:
            self._write(_Portion(None, self._subjects, self._payloads, self._blocks))
            self._empty()

    def _write(self, portion: _Portion) -> None:
        try:
            self._spool.add(_encode(portion))
        except Fault as fault:
            raise public_error(fault) from fault


async def load(transaction: Transacting, path: str, key: Key | None = None, sums: PlacedSums = placed_sums) -> None:
    """Store the messages of a staged file in a transaction of the engine.

    Memory holds one portion at a time. ``sums`` may be a faster :func:`~pelton.storage.placed_sums`. Raises
    NotAStoreError if the file does not exist, StoreError if it is damaged, and what publishing raises; then roll the
    transaction back, because earlier portions are already stored in it.
    """
    assert isinstance(transaction, OpenTransaction), "staged files can be loaded only into a store file"
    for portion in staged_portions(path, key):
        if portion.packed is not None:
            await transaction.load(portion.packed, sums)
        else:
            await transaction.load(portion.messages())


def staged_portions(path: str, key: Key | None) -> Iterator[_Portion]:
    if not os.path.exists(path):
        raise NotAStoreError(path, "the staged file is gone; stage its messages again")
    with _open_spool(path, key, new=False) as spool:
        try:
            for data in spool.portions():
                yield _decode(data)
        except Fault as fault:
            raise public_error(fault) from fault


def _open_spool(path: str, key: Key | None, *, new: bool) -> Spool:
    try:
        return Spool(path, key_bytes(key), new=new)
    except Fault as fault:
        raise public_error(fault) from fault
