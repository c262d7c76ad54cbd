"""A stream that renames and republishes does, and republishes, what the plain model does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis.stateful import invariant

from pelton.api import StreamNames, headers
from pelton.api.backend import BackendSubscription
from tests.model.reference import Asked, StreamModel
from tests.model.test_stream import StreamMachine

Said = tuple[str, bytes, int, int]
"""Subject, payload, and the sequences told: its own, and the last of its subject before."""


@dataclass
class MappedModel(StreamModel):
    """The model of a stream, and its republished messages."""

    said: list[Said] = field(default_factory=list)

    def publish(self, subject: str, data: bytes, header: int, asked: Asked, now: int) -> tuple[str, int]:
        tokens = subject.split(".")
        if len(tokens) == 3 and tokens[2] == "c":
            subject = "s.b"
        self.age(now)
        last = self.last_of(subject)
        word, seq = super().publish(subject, data, header, asked, now)
        if word == "stored":
            self.said.append((f"again.{subject}", data, seq, last))
        return word, seq


class MappedMachine(StreamMachine):
    """One opener subscribes; all publish."""

    MAPPINGS: ClassVar[dict[str, dict[str, str]]] = {
        "subject_transform": {"src": "s.*.c", "dest": "s.b"},
        "republish": {"src": ">", "dest": "again.>"},
    }
    MODEL: ClassVar[type[StreamModel]] = MappedModel
    listening: BackendSubscription

    async def _open(self) -> None:
        await super()._open()
        self.listening = await self.jets[0].backend.subscribe("again.>")

    async def _heard(self) -> list[Said]:
        # Reading from the store delivers what others have republished.
        await self.jets[0].backend.call(StreamNames())
        found: list[Said] = []
        while (message := await self.listening.next(0)) is not None:
            told = headers.decode(message.headers or b"")
            assert told["Nats-Subject"] == message.subject.removeprefix("again.")
            sequences = (int(told[name]) for name in ("Nats-Sequence", "Nats-Last-Sequence"))
            found.append((message.subject, message.data, *sequences))
        return found

    @invariant()
    def hears(self) -> None:
        model = getattr(self, "model", None)
        if isinstance(model, MappedModel):
            expected, model.said = model.said, []
            assert self.run(self._heard()) == expected


TestMappings = MappedMachine.TestCase
