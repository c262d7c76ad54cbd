"""Steps that publish."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

import pelton
from pelton.api import Outgoing, headers
from tests.differential.steps import Side, Step


@dataclass(frozen=True, repr=False)
class Publish(Step):
    subject: str = "s.a"
    size: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""

    async def run(self, side: Side) -> Any:
        return await side.jet.backend.publish(self.subject, self.data or b"x" * self.size, encoded(side, self.headers))


@dataclass(frozen=True, repr=False)
class PublishMany(Step):
    """A batch: embedded in one transaction, on the server one message after another, up to the first refused one."""

    messages: tuple[tuple[str, int], ...] = ()

    async def run(self, side: Side) -> Any:
        batch = [Outgoing(subject, b"x" * size) for subject, size in self.messages]
        if isinstance(side.jet.backend, pelton.engine.Engine):
            return await side.jet.backend.publish_batch(batch)
        return [await side.jet.backend.publish(m.subject, m.data, m.headers) for m in batch]


@dataclass(frozen=True, repr=False)
class PublishAtomic(Step):
    """A batch that is stored atomically, or not at all."""

    messages: tuple[tuple[str, int, dict[str, str]], ...] = ()

    async def run(self, side: Side) -> Any:
        batch = side.next_batch()
        messages = [
            Outgoing(subject, b"x" * size, _marked(block, batch, number, last=number == len(self.messages)))
            for number, (subject, size, block) in enumerate(self.messages, start=1)
        ]
        backend = side.jet.backend
        if isinstance(backend, pelton.engine.Engine):
            return msgspec.structs.replace(await backend.publish_atomic(messages), batch=batch)
        # As `publish_atomic` does there, with an id that is the same on both sides.
        return [await backend.publish(m.subject, m.data, m.headers) for m in messages][-1]


def _marked(block: dict[str, str], batch: str, number: int, *, last: bool) -> bytes:
    marks = {headers.BATCH_ID: batch, headers.BATCH_SEQUENCE: str(number)}
    return headers.encode({**block, **marks, **({headers.BATCH_COMMIT: "1"} if last else {})})


def encoded(side: Side, given: dict[str, str]) -> bytes | None:
    """Return a header block; an expected stream has its name in this program."""
    if headers.EXPECTED_STREAM in given:
        given = {**given, headers.EXPECTED_STREAM: side.real(given[headers.EXPECTED_STREAM])}
    return headers.encode(given) if given else None
