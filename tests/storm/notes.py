"""The records of a storm's actors beside the steps of streams."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tests.journal import Journal, machine_ns

NoteKind = Literal[
    "holds",  # `what` is held with token `number`; `at` was read before it was asked
    "purging", "purged",  # the messages of `what` (a stream) below `number`, of subject `name` where there is one
    "removing", "removed",  # message `number` of stream `what`
    "deleting", "deleted",  # the consumer of stream `what`
    "begun", "kept", "undone",  # the transaction `name`
    "enqueueing", "enqueued",  # `number` jobs; `name`: the ids of jobs
    "ordering", "ordered",  # a job of queue `what`, `name`: its id, function, number and delay; `number`: when asked
    "seen",  # in queue `what` the jobs `name` with their states, asked at `at`, answered at `number`
    "killed", "slept",  # the process `number`
    "jumped",  # the wall clock, to `name` seconds ahead
    "backing", "backed",  # to the file `name`
    "broken",  # what was found beside the others: `name` in words
]  # fmt: skip


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something that one process did or is about to do."""

    kind: NoteKind
    at: int
    who: str
    what: str = ""
    name: str = ""
    number: int = 0


class Notes(Journal):
    """One process's notes."""

    def __init__(self, folder: Path, who: str) -> None:
        super().__init__(folder, who, "notes")

    def say(self, kind: NoteKind, what: str = "", name: str = "", number: int = 0, at: int | None = None) -> None:
        at = machine_ns() if at is None else at
        self.note(Note(kind=kind, at=at, who=self.who, what=what, name=name, number=number))
