"""Loads messages into a store in two steps: many processes stage them in files, one loads all files at once.

Staging does not touch the store, so a process that fails, or is redundant, leaves only a file behind. Loading is one
transaction (:func:`load`): other writers wait for it, and readers see the store as it was until it commits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, Self

import msgspec

from pelton.api import NotAStoreError, Outgoing, Transacting
from pelton.api.keys import Key, key_bytes
from pelton.engine.faults import public_error
from pelton.engine.transactions.transaction import OpenTransaction
from pelton.storage import Fault, PlacedSums, Spool, placed_sums
from pelton.streams import Packed

_BYTES: Final = 8 * 1024 * 1024
_ROWS: Final = 32_768
_OVERHEAD: Final = 64


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
        self._spool = _opened(path, key, new=True)
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
        if size > _BYTES and len(payloads) > 1:
            half = len(payloads) // 2
            for part in (slice(half), slice(half, None)):
                self.add(subjects[part], payloads[part], None if blocks is None else blocks[part])
            return
        self._blocks += blocks if blocks is not None else [None] * len(subjects)
        self._bytes += sum(map(len, filter(None, blocks or ())))
        self._subjects += subjects
        self._payloads += payloads
        self._bytes += size + _OVERHEAD * len(subjects)
        if self._bytes >= _BYTES or len(self._subjects) >= _ROWS:
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
    for portion in _portions(path, key):
        if portion.packed is not None:
            await transaction.load(portion.packed, sums)
        else:
            await transaction.load(portion.messages())


def staged(path: str, key: Key | None = None) -> Iterator[list[Outgoing]]:
    """Iterate over the messages of a staged file by portions. Raises NotAStoreError if it does not exist."""
    for portion in _portions(path, key):
        yield portion.messages()


def _portions(path: str, key: Key | None) -> Iterator[_Portion]:
    if not os.path.exists(path):
        raise NotAStoreError(path, "the staged file is gone; stage its messages again")
    with _opened(path, key, new=False) as spool:
        try:
            for data in spool.portions():
                yield _decode(data)
        except Fault as fault:
            raise public_error(fault) from fault


def _opened(path: str, key: Key | None, *, new: bool) -> Spool:
    try:
        return Spool(path, key_bytes(key), new=new)
    except Fault as fault:
        raise public_error(fault) from fault
