"""A stream does what the plain model does, whatever happens to it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import pelton
from pelton.api import headers, resolved_stream, stream_config
from tests.model.machine import StoreMachine, openers
from tests.model.reference import Asked, StreamModel

SUBJECTS = ("s.a", "s.b", "s.b.c", "s.é.c", "s.0123456789")
FILTERS = ("s.a", "s.b", "s.>", "s.*", "s.*.c", "nothing")
MARKED = {
    pelton.MaxMessagesError: "full",
    pelton.MaxBytesError: "bytes full",
    pelton.MaxMessagesPerSubjectError: "subject full",
    pelton.MessageTooLargeError: "too large",
    pelton.WrongLastSequenceError: "wrong sequence",
}
BY_CODE = {10060: "wrong stream", 10070: "wrong id", 10193: "no sequence"}

limits = st.fixed_dictionaries(
    {
        "max_msgs": st.sampled_from([-1, -1, 1, 3, 8]),
        "max_bytes": st.sampled_from([-1, -1, 60, 150, 400]),
        "max_msgs_per_subject": st.sampled_from([-1, -1, 1, 2, 3]),
        "max_msg_size": st.sampled_from([-1, -1, 30]),
        "max_age": st.sampled_from([0, 0, 1, 5]),
        "discard": st.sampled_from(["old", "new"]),
    }
)


@st.composite
def publishes(draw: st.DrawFn) -> tuple[str, bytes, dict[str, object]]:
    """A subject, a payload, and expectations; "right" stands for the sequence or id that matches."""
    asked: dict[str, object] = {}
    if draw(st.booleans()):
        asked["msg_id"] = draw(st.sampled_from(["", "one", "two", "three"]))
    if draw(st.integers(0, 2)) == 0:
        asked["last_seq"] = draw(st.sampled_from([None, "right", "right", 0, 3]))
        asked["last_subject_seq"] = draw(st.sampled_from([None, "right", "right", 0, 2]))
        asked["last_subject_filter"] = draw(st.sampled_from(["", "", "s.b", "s.>", "s.*.c"]))
        asked["last_msg_id"] = draw(st.sampled_from([None, None, "right", "one", ""]))
        asked["stream"] = draw(st.sampled_from(["", "", "S", "T"]))
    return draw(st.sampled_from(SUBJECTS)), b"x" * draw(st.sampled_from([0, 1, 10, 29, 40])), asked


class StreamMachine(StoreMachine):
    """Four openers of one file against one model."""

    MAPPINGS: ClassVar[dict[str, dict[str, str]]] = {}
    MODEL: ClassVar[type[StreamModel]] = StreamModel

    @initialize(limits=limits, per_subject=st.booleans())
    def create(self, limits: dict[str, object], per_subject: bool) -> None:
        limits = dict(limits)
        if limits["discard"] == "new" and limits["max_msgs_per_subject"] != -1:
            limits["discard_new_per_subject"] = per_subject
        window = 1 if limits["max_age"] == 1 else 3
        config = {"subjects": ["s.>"], "duplicate_window": window, **limits, **self.MAPPINGS}
        self.run(self.jets[0].create_stream("S", **config))
        self.model = self.MODEL(resolved_stream(stream_config("S", **config)))

    def _asked(self, subject: str, wanted: dict[str, object]) -> Asked:
        asked = Asked(**wanted)  # type: ignore[arg-type]  # drawn to fit
        if asked.last_seq == "right":
            asked.last_seq = self.model.last
        if asked.last_subject_seq == "right":
            asked.last_subject_seq = self.model.last_of(asked.last_subject_filter or subject)
        if asked.last_msg_id == "right":
            asked.last_msg_id = self.model.id_of.get(self.model.last, "")
        return asked

    async def _publish(self, jet: pelton.Jet, subject: str, data: bytes, asked: Asked) -> tuple[str, int]:
        try:
            ack = await jet.publish(
                subject,
                data,
                msg_id=asked.msg_id or None,
                expected_stream=asked.stream or None,
                expected_last_seq=asked.last_seq,
                expected_last_msg_id=asked.last_msg_id,
                expected_last_subject_seq=asked.last_subject_seq,
                expected_last_subject_seq_subject=asked.last_subject_filter or None,
            )
        except pelton.ApiError as error:
            return MARKED.get(type(error)) or BY_CODE[error.err_code], error.seq or 0
        return ("duplicate" if ack.duplicate else "stored"), ack.seq

    @rule(messages=st.lists(publishes(), min_size=1, max_size=5), opener=openers)
    def publish(self, messages: list[tuple[str, bytes, dict[str, object]]], opener: int) -> None:
        """Publish at once, so that all of them share a transaction; the model does one after the other."""
        self.model.age(self.now)
        calls, expected = [], []
        for subject, data, wanted in messages:
            asked = self._asked(subject, wanted)
            calls.append(self._publish(self.jets[opener], subject, data, asked))
            expected.append(self.model.publish(subject, data, _header_length(asked), asked, self.now))

        async def together() -> list[tuple[str, int]]:
            return list(await asyncio.gather(*calls))

        assert self.run(together()) == expected

    @rule(
        batch=st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from([b"", b"12345", b"x" * 31])), max_size=6),
        opener=openers,
    )
    def publish_batch(self, batch: list[tuple[str, bytes]], opener: int) -> None:
        expected: list[int] = []
        for subject, data in batch:
            word, seq = self.model.publish(subject, data, -1, Asked(), self.now)
            if word != "stored":
                break
            expected.append(seq)
        if len(expected) < len(batch):
            with pytest.raises(pelton.LimitError):
                self.run(self.jets[opener].publish_batch(batch))
            return
        assert [ack.seq for ack in self.run(self.jets[opener].publish_batch(batch))] == expected

    @rule(seq=st.integers(1, 30), opener=openers)
    def delete_message(self, seq: int, opener: int) -> None:
        self.model.age(self.now)
        there = self.model.messages.pop(seq, None)
        if there is not None:
            self.run(self._delete(opener, seq))
            return
        with pytest.raises(pelton.ApiError) as refused:
            self.run(self._delete(opener, seq))
        # As a NATS server does: a gap has another error than a sequence outside.
        assert refused.value.err_code == (10043 if self.model.first <= seq <= self.model.last else 10057)

    async def _delete(self, opener: int, seq: int) -> None:
        await (await self.jets[opener].stream("S")).delete_message(seq)

    @rule(
        subject_filter=st.sampled_from(["", "", *FILTERS]),
        bound=st.sampled_from(["", "seq", "keep"]),
        amount=st.integers(0, 12),
        opener=openers,
    )
    def purge(self, subject_filter: str, bound: str, amount: int, opener: int) -> None:
        self.model.age(self.now)
        seq, keep = (amount if bound == kind else 0 for kind in ("seq", "keep"))
        purged = self.run(self._purge(opener, subject_filter, seq, keep))
        assert purged == self.model.purge(subject_filter, seq, keep)

    async def _purge(self, opener: int, subject_filter: str, seq: int, keep: int) -> int:
        return await (await self.jets[opener].stream("S")).purge(filter=subject_filter, seq=seq, keep=keep)

    @rule(limits=limits, opener=openers)
    def update(self, limits: dict[str, object], opener: int) -> None:
        self.model.age(self.now)
        limits = dict(limits, discard_new_per_subject=False)
        if limits["max_age"] == 1:
            limits["max_age"] = 5
        self.run(self.jets[opener].update_stream("S", **limits))
        base = resolved_stream(stream_config(self.model.config, **limits))
        self.model.config = base
        self.model.age(self.now)
        self.model.trim()

    @rule(seq=st.integers(1, 12), subject_filter=st.sampled_from(FILTERS), opener=openers)
    def look(self, seq: int, subject_filter: str, opener: int) -> None:
        self.model.age(self.now)
        got = self.run(self._look(opener, seq, subject_filter))
        after = [found for found in self.model.of(subject_filter) if found >= seq]
        assert got[0] == (seq if seq in self.model.messages else 0)
        assert got[1] == self.model.last_of(subject_filter)
        assert got[2] == min(after, default=0)

    async def _look(self, opener: int, seq: int, subject_filter: str) -> list[int]:
        stream = await self.jets[opener].stream("S")
        found = []
        for call in (
            stream.get_message(seq),
            stream.get_last_message(subject_filter),
            stream.get_next_message(subject_filter, seq),
        ):
            try:
                message = await call
            except pelton.MessageNotFoundError:
                found.append(0)
            else:
                _, subject, data, _ = self.model.messages[message.seq]
                assert (message.subject, message.data) == (subject, data)
                found.append(message.seq)
        return found

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        model = self.model
        model.age(self.now)
        for jet in self.jets:
            state = self.run(_info(jet)).state
            counts = {message[1]: len(model.of(message[1])) for message in model.messages.values()}
            gaps = [seq for seq in range(model.first, model.last + 1) if seq not in model.messages]
            assert (state.messages, state.bytes) == (len(model.messages), model.bytes)
            assert (state.first_seq, state.last_seq) == ((model.first, model.last) if model.last else (0, 0))
            assert (state.subjects, state.num_subjects) == (counts, len(counts))
            assert (state.deleted, state.num_deleted) == (gaps, len(gaps))
        self.check_rows()


async def _info(jet: pelton.Jet) -> pelton.StreamInfo:
    return await (await jet.stream("S")).info(subjects_filter=">", deleted_details=True)


def _header_length(asked: Asked) -> int:
    names = {
        headers.MSG_ID: asked.msg_id or None,
        headers.EXPECTED_STREAM: asked.stream or None,
        headers.EXPECTED_LAST_MSG_ID: asked.last_msg_id,
        headers.EXPECTED_LAST_SEQUENCE: asked.last_seq,
        headers.EXPECTED_LAST_SUBJECT_SEQUENCE: asked.last_subject_seq,
        headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: asked.last_subject_filter or None,
    }
    given = {name: str(value) for name, value in names.items() if value is not None}
    return len(headers.encode(given)) if given else -1


TestStream = StreamMachine.TestCase
