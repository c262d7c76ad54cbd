"""The records of the soak's processes, line by line, before and after each action."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pelton.api import Delivered
from tests.journal import Journal, entries, machine_ns
from tests.kit.deliveries import Step


class Record(Journal):
    """One process's part of the history."""

    def __init__(self, folder: Path, who: str) -> None:
        super().__init__(folder, who, "steps")

    def step(self, kind: Any, stream: str, **fields: Any) -> Step:
        return Step(kind=kind, at=machine_ns(), who=self.who, stream=stream, **fields)

    def of(self, kind: Any, delivered: Delivered, **fields: Any) -> Step:
        d = delivered
        names = {"consumer": d.consumer, "seq": d.seq, "dseq": d.consumer_seq, "n": d.num_delivered, "token": d.token}
        return self.step(kind, d.stream, subject=d.subject, **names, **fields)


def read(folder: Path) -> Iterator[Step]:
    return entries(folder, "steps", Step)
