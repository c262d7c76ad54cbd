"""Journals: records of what a process does, written so that a SIGKILL loses none of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class Journal:
    """One process's file of a kind: one line per entry, each batch of lines in one write."""

    def __init__(self, folder: Path, who: str, kind: str) -> None:
        self.who = who
        self._file = os.open(folder / f"{who}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *entries: msgspec.Struct) -> None:
        os.write(self._file, b"".join(_encode(entry) + b"\n" for entry in entries))


def entries(folder: Path, kind: str, of: type[T]) -> Iterator[T]:
    """Return all entries; the last line of a killed process may be incomplete."""
    decode = msgspec.json.Decoder(of).decode
    for path in sorted(folder.glob(f"*.{kind}")):
        *lines, _ = path.read_bytes().split(b"\n")
        yield from map(decode, lines)


def machine_ns() -> int:
    """The clock that all processes of a machine share, and that is never stepped."""
    return time.monotonic_ns()
