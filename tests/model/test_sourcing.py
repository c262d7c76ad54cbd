"""An inbox with limits, a work queue of few messages per subject that sources it, and a mirror: modelled by lists."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import pelton
from tests.model.machine import StoreMachine, openers

_KEPT = 3
_SUBJECTS = st.sampled_from(["in.a", "in.b", "in.c"])
_WORK: dict[str, Any] = {
    "retention": "workqueue",
    "discard": "new",
    "discard_new_per_subject": True,
    "sources": [{"name": "inbox"}],
}


class Sourcing(StoreMachine):
    """``inbox`` holds its messages by sequence, ``waiting`` sequences by subject, ``work`` the deliverable ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: dict[int, str] = {}
        self.published: dict[int, str] = {}
        self.waiting: dict[str, list[int]] = {}
        self.work: list[tuple[str, int]] = []
        self.room = 1

    @initialize()
    def make(self) -> None:
        self.run(self._make())

    async def _make(self) -> None:
        jet = self.jets[0]
        await jet.create_stream("inbox", subjects=["in.>"], max_msgs_per_subject=_KEPT)
        work = await jet.create_stream("work", **_WORK, max_msgs_per_subject=1)
        await work.create_consumer(durable_name="c", ack_wait=1_000_000)
        await jet.create_stream("copy", mirror={"name": "inbox"})

    @rule(who=openers, subjects=st.lists(_SUBJECTS, min_size=1, max_size=6))
    def publish(self, who: int, subjects: list[str]) -> None:
        first = max(self.published, default=0) + 1
        messages = [(subject, b"%d" % seq) for seq, subject in enumerate(subjects, first)]
        self.run(self.jets[who].publish_batch(messages))
        for seq, subject in enumerate(subjects, first):
            self.published[seq] = self.inbox[seq] = subject
            self.waiting.setdefault(subject, []).append(seq)
            self._move(subject)
            mine = [seq for seq, of in self.inbox.items() if of == subject]
            for old in mine[:-_KEPT]:
                self._lose(old)

    @precondition(lambda self: self.work)
    @rule(who=openers)
    def acknowledge(self, who: int) -> None:
        """All that can be delivered is, in order, and the first is acknowledged; the others are given back."""
        messages = self.run(self._fetch(who))
        assert [(m.subject, int(m.data)) for m in messages] == self.work
        self.run(messages[0].ack())
        subject, _ = self.work.pop(0)
        self._move(subject)
        for message in messages[1:]:
            self.run(message.nak())

    async def _fetch(self, who: int) -> list[pelton.Message]:
        consumer = await (await self.jets[who].stream("work")).consumer("c")
        messages = await consumer.fetch(1000, timeout=0)
        return sorted(messages, key=lambda message: message.metadata.stream_seq)

    @precondition(lambda self: self.inbox)
    @rule(who=openers, data=st.data())
    def delete(self, who: int, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.inbox)))
        self.run(self._stream(who, "inbox", "delete_message", seq))
        self._lose(seq)

    @rule(who=openers, name=st.sampled_from(["inbox", "work"]))
    def purge(self, who: int, name: str) -> None:
        self.run(self._stream(who, name, "purge"))
        if name == "inbox":
            self.inbox.clear()
            self.waiting.clear()
            return
        self.work.clear()
        for subject in sorted(self.waiting):
            self._move(subject)

    @rule(who=openers, room=st.integers(1, 3))
    def change(self, who: int, room: int) -> None:
        self.run(self.jets[who].update_stream("work", max_msgs_per_subject=room))
        self.room = room
        for subject in {subject for subject, _ in self.work}:
            # A lower limit applies to stored messages.
            for entry in [entry for entry in self.work if entry[0] == subject][:-room]:
                self.work.remove(entry)
        for subject in sorted(self.waiting):
            self._move(subject)

    async def _stream(self, who: int, name: str, method: str, *args: int) -> None:
        await getattr(await self.jets[who].stream(name), method)(*args)

    def _lose(self, seq: int) -> None:
        subject = self.inbox.pop(seq)
        if seq in self.waiting.get(subject, ()):
            self.waiting[subject].remove(seq)

    def _move(self, subject: str) -> None:
        waiting = self.waiting.get(subject, [])
        while waiting and sum(of == subject for of, _ in self.work) < self.room:
            self.work.append((subject, waiting.pop(0)))

    @invariant()
    def agrees(self) -> None:
        if self.jets and self.published:
            self.run(self._agrees())

    async def _agrees(self) -> None:
        for jet in self.jets:
            work = await (await jet.stream("work")).info()
            assert work.state.messages == len(self.work)
            assert work.sources[0].lag == sum(map(len, self.waiting.values()))
            copy = await jet.stream("copy")
            assert (await copy.info()).state.last_seq == max(self.published)
            inbox = (await (await jet.stream("inbox")).info()).state
            assert inbox.messages == len(self.inbox)
        self.check_rows()


TestSourcing = Sourcing.TestCase
