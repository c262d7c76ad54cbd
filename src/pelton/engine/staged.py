"""Messages on their way into a store by two steps: many processes stage them in files, one loads all at once.

Staging touches the store not at all, so a process that fails, or is one too many, leaves nothing but a file. Loading is
one transaction (:func:`load`): other writers wait for it, readers see the store as it was until it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, Self

import msgspec

from pelton.api import NotAStoreError, Outgoing
from pelton.engine.faults import public_error
from pelton.engine.keys import Key, key_bytes
from pelton.storage import Fault, Spool

_BYTES: Final = 8 * 1024 * 1024
_ROWS: Final = 32_768
_OVERHEAD: Final = 64


class _Portion(msgspec.Struct, array_like=True, gc=False):
    """Messages, one list a field; no ``blocks`` where none has headers."""

    subjects: list[str]
    payloads: list[bytes]
    blocks: list[bytes | None] | None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Portion).decode


class StagedWriter:
    """Writes the new staged file ``path``; close it, or use it in a ``with``."""

    def __init__(self, path: str, key: Key | None = None) -> None:
        self._spool = _opened(path, key, new=True)
        self._empty()

    def _empty(self) -> None:
        self._portion = _Portion([], [], None)
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._flush()
        self._spool.close()

    def add(
        self, subjects: Sequence[str], payloads: Sequence[bytes], blocks: Sequence[bytes | None] | None = None
    ) -> None:
        """Stage messages: subjects, payloads and, where there are any, encoded header blocks."""
        portion = self._portion
        if blocks is not None and portion.blocks is None:
            portion.blocks = [None] * len(portion.subjects)
        if portion.blocks is not None:
            portion.blocks += blocks if blocks is not None else [None] * len(subjects)
            self._bytes += sum(map(len, filter(None, blocks or ())))
        portion.subjects += subjects
        portion.payloads += payloads
        self._bytes += sum(map(len, payloads)) + _OVERHEAD * len(subjects)
        if self._bytes >= _BYTES or len(portion.subjects) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._portion.subjects:
            return
        try:
            self._spool.add(_encode(self._portion))
        except Fault as fault:
            raise public_error(fault) from fault
        self._empty()


def staged(path: str, key: Key | None = None) -> Iterator[list[Outgoing]]:
    """Iterate over the messages of a staged file, a portion at a time. Raises NotAStoreError where it is not there."""
    if not os.path.exists(path):
        raise NotAStoreError(path, "the staged file is gone; whoever staged it has to do it again")
    with _opened(path, key, new=False) as spool:
        try:
            for data in spool.portions():
                portion = _decode(data)
                blocks = portion.blocks or [None] * len(portion.subjects)
                yield list(zip(portion.subjects, portion.payloads, blocks, strict=True))
        except Fault as fault:
            raise public_error(fault) from fault


def _opened(path: str, key: Key | None, *, new: bool) -> Spool:
    try:
        return Spool(path, key_bytes(key), new=new)
    except Fault as fault:
        raise public_error(fault) from fault
