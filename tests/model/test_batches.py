"""Batches are stored completely or not at all, whichever opener publishes, fails, updates or reopens in between."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import pelton
from pelton.api import ApiError, PubAck
from tests.model.machine import StoreMachine, openers

SUBJECTS = ("s.a", "s.b", "s.c")
IDS = ("", "", "one", "two", "three")

messages = st.tuples(
    st.sampled_from(SUBJECTS), st.sampled_from([1, 10, 90]), st.sampled_from(IDS), st.sampled_from([None, None, 0, 1])
)
batches = st.lists(messages, min_size=1, max_size=5)
Wanted = tuple[str, int, str, int | None]


class BatchMachine(StoreMachine):
    """Four openers of one file; the expected messages of the stream, by sequence."""

    @initialize(per_subject=st.sampled_from([-1, 1, 2]), most=st.sampled_from([-1, 4]), new=st.booleans())
    def create(self, per_subject: int, most: int, new: bool) -> None:
        self.per_subject, self.most, self.new = per_subject, most, new
        config: dict[str, Any] = {"max_msgs_per_subject": per_subject, "max_msgs": most, "max_msg_size": 80}
        if new:
            config.update(discard="new", discard_new_per_subject=per_subject > 0)
        self.run(self.jets[0].create_stream("S", subjects=["s.>"], allow_atomic=True, **config))
        self.kept: dict[int, tuple[str, bytes]] = {}
        self.last = self.number = 0
        self.ids: set[str] = set()

    def _of(self, kept: dict[int, tuple[str, bytes]], subject: str) -> list[int]:
        return [seq for seq, message in kept.items() if message[0] == subject]

    def _batch(self, batch: list[Wanted]) -> tuple[list[Any], bool]:
        """Return the messages, and whether they must be accepted; if so they are added to the model."""
        kept, last, ids, written = dict(self.kept), self.last, set(self.ids), set[str]()
        sent: list[Any] = []
        good = True
        for subject, size, msg_id, offset in batch:
            self.number += 1
            data = (b"%d|" % self.number).ljust(size, b"x")
            asked = {"Nats-Msg-Id": msg_id} if msg_id else {}
            if offset is not None:
                right = max(self._of(self.kept, subject), default=0)
                asked["Nats-Expected-Last-Subject-Sequence"] = str(right + offset)
            sent.append((subject, data, asked))
            block = len(pelton.api.headers.encode(asked)) if asked else 0
            full = self.new and ((0 < self.per_subject <= len(self._of(kept, subject))) or 0 < self.most <= len(kept))
            bad = len(data) + block > 80 or msg_id in ids or offset == 1 or (offset == 0 and subject in written) or full
            good = good and not bad
            last += 1
            kept[last] = (subject, data)
            written.add(subject)
            if msg_id:
                ids.add(msg_id)
            if self.per_subject > 0:
                for seq in self._of(kept, subject)[: -self.per_subject]:
                    del kept[seq]
            while 0 < self.most < len(kept):
                del kept[min(kept)]
        if good:
            self.kept, self.last, self.ids = kept, last, ids
        return sent, good

    @rule(wanted=st.lists(batches, min_size=1, max_size=4), broken=st.booleans(), opener=openers)
    def publish(self, wanted: list[list[Wanted]], broken: bool, opener: int) -> None:
        """Publish batches at once, so that all share a transaction, possibly with one that rolls it back."""
        jet, nothing = self.jets[opener], _nothing()
        calls: list[Any] = []
        expected: list[int] = []
        for batch in wanted:
            sent, good = self._batch(batch)
            calls.append(jet.publish_atomic(sent))
            expected.append(self.last if good else 0)
        if broken:
            calls.append(jet.backend.publish("s.a", nothing))
        found = self.run(_together(calls))
        if broken:
            assert isinstance(found.pop(), Exception)
        for got, last in zip(found, expected, strict=True):
            assert isinstance(got, PubAck) == (last > 0), got
            assert isinstance(got, ApiError) or got.seq == last

    @rule(subject=st.sampled_from(SUBJECTS), opener=openers)
    def publish_one(self, subject: str, opener: int) -> None:
        sent, good = self._batch([(subject, 1, "", None)])
        found = self.run(_together([self.jets[opener].publish(subject, sent[0][1])]))
        assert isinstance(found[0], PubAck) == good

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "kept"):
            return
        for jet in self.jets:
            state = self.run(_state(jet))
            assert (state.messages, state.last_seq) == (len(self.kept), self.last)
            for seq, message in self.kept.items():
                assert self.run(_stored(jet, seq)) == message
        self.check_rows()


def _nothing() -> Any:
    return None


async def _together(calls: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def _state(jet: pelton.Jet) -> pelton.StreamState:
    return (await (await jet.stream("S")).info()).state


async def _stored(jet: pelton.Jet, seq: int) -> tuple[str, bytes]:
    message = await (await jet.stream("S")).get_message(seq)
    return message.subject, message.data


TestBatches = BatchMachine.TestCase
