"""What each process of the soak writes down, line by line, before and after it acts: a SIGKILL loses none of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pelton.api import Delivered
from pelton.testing.deliveries import Step

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Step).decode


class Record:
    """One process's part of the history."""

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        self._file = os.open(folder / f"{who}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *steps: Step) -> None:
        os.write(self._file, b"".join(_encode(step) + b"\n" for step in steps))

    def step(self, kind: Any, stream: str, **fields: Any) -> Step:
        return Step(kind=kind, at=machine_ns(), who=self.who, stream=stream, **fields)

    def of(self, kind: Any, delivered: Delivered, **fields: Any) -> Step:
        d = delivered
        names = {"consumer": d.consumer, "seq": d.seq, "dseq": d.consumer_seq, "n": d.num_delivered}
        return self.step(kind, d.stream, subject=d.subject, **names, **fields)


def machine_ns() -> int:
    """The clock that all processes of a machine share, and nobody steps."""
    return time.monotonic_ns()


def read(folder: Path) -> Iterator[Step]:
    """Return all that was written; the last line of a killed process may be half a line."""
    for path in sorted(folder.glob("*.steps")):
        *lines, _ = path.read_bytes().split(b"\n")
        yield from map(_decode, lines)
