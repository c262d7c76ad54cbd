"""Files that objects are written to: under another name until they are complete."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pelton.api import ConfigError

Target = str | os.PathLike[str] | BinaryIO
"""Where an object can be written: a path, or an open binary file."""


class ObjectFile:
    """A file being written; its methods block. ``unique`` distinguishes files that are written at the same time."""

    def __init__(self, target: Target, unique: str) -> None:
        """Open it. Raises ConfigError for a target that cannot be written to, OSError."""
        self._path: Path | None = None
        if isinstance(target, str | os.PathLike):
            self._path = _file(os.fspath(target))
            self._part = self._path.with_name(f".{self._path.name}.{unique}.part")
            self._file: BinaryIO = self._part.open("xb")
        elif hasattr(target, "write"):
            self._file = target
        else:
            raise ConfigError(f"{type(target).__name__} is no file: give a path, or a file opened for writing bytes")

    def write(self, chunks: list[bytes]) -> None:
        """Append chunks; an unbuffered file may take only a part of one at a time."""
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]

    def keep(self) -> None:
        """Give the complete file its name, once it is on disk."""
        if self._path is None:
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._part.replace(self._path)

    def drop(self) -> None:
        """Remove the file of the other name; what was written to an open file stays."""
        if self._path is not None:
            self._file.close()
            with suppress(FileNotFoundError):
                self._part.unlink()


def _file(target: str | bytes) -> Path:
    """Return the path of a file to write; an OSError of the file system is left to the writing."""
    path = Path(os.fsdecode(target))
    if "\0" in str(path) or not _is_encodable(str(path)):
        raise ConfigError(f"{target!r} names no file: give the path of the file to write the object to")
    # "." has no name, ".." cannot be replaced.
    if path.name in ("", "..") or path.is_dir():
        raise ConfigError(f"{target!r} is a folder: give the path of the file to write the object to")
    return path


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
