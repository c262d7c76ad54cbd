"""The events of a disk that several processes write, in one order: each appends to a file.

A process appends an event when it has happened, and before it does anything else. So everything that led to an event,
in whichever process, precedes it. While processes record, a place among the events is a number of bytes of the file.
"""

from __future__ import annotations

import os
import pickle
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

_LENGTH: Final = 8


class SharedEvents:
    """One process's access to the events of all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file, which is created if it does not exist."""
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, event: Any) -> None:
        """Add an event that has happened."""
        data = pickle.dumps(event)
        os.write(self._file, len(data).to_bytes(_LENGTH, "little") + data)

    def __len__(self) -> int:
        """The place after all events so far."""
        return os.fstat(self._file).st_size

    def read(self) -> tuple[list[Any], Callable[[int], int]]:
        """Return all events, and a function that returns how many of them precede a place."""
        records: list[bytes] = []
        with open(self._path, "rb") as file:
            while length := file.read(_LENGTH):
                records.append(file.read(int.from_bytes(length, "little")))
        places = list(accumulate(_LENGTH + len(record) for record in records))
        # Only processes of the test have written it.
        return [pickle.loads(record) for record in records], lambda place: bisect_right(places, place)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
