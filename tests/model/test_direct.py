"""Direct get compared with a list of messages: whatever was stored and removed, each reply is what a search finds."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import pelton
from pelton.api import DirectGet, MessageNotFoundError
from pelton.connect import Jet
from pelton.subjects import matches

_SUBJECTS = ["a", "b.1", "b.2", "c.1.x"]
_FILTERS = [*_SUBJECTS, ">", "b.*", "b.>", "*.1.>", "d"]

change = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from(_SUBJECTS), min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.integers(1, 20)),
    st.tuples(st.just("purge"), st.sampled_from(_FILTERS)),
)
sequence = st.integers(0, 25)
question = st.one_of(
    st.builds(lambda seq: {"seq": seq}, sequence),
    st.builds(lambda subject: {"last_by_subj": subject}, st.sampled_from(_FILTERS)),
    st.builds(
        lambda seq, subject, batch: {"seq": seq, "next_by_subj": subject, "batch": batch},
        sequence,
        st.sampled_from(["", *_FILTERS]),
        st.integers(0, 5),
    ),
    st.builds(
        lambda filters, up_to, seq, batch: {"multi_last": filters, "up_to_seq": up_to, "seq": seq, "batch": batch},
        st.lists(st.sampled_from(_FILTERS), min_size=1, max_size=3).map(tuple),
        sequence,
        sequence,
        st.integers(0, 3),
    ),
)


class Reference:
    """The messages as pairs of sequence and subject."""

    def __init__(self) -> None:
        self.last = 0
        self.stored: list[tuple[int, str]] = []

    def answer(self, asked: dict[str, Any]) -> tuple[list[int], int] | None:
        """Return sequences and the number pending; None if nothing is found."""
        if "multi_last" in asked:
            return self._last_of_each(asked)
        if "last_by_subj" in asked:
            found = self._matching(asked["last_by_subj"])[-1:]
        elif asked.get("next_by_subj") or asked.get("batch"):
            found = [seq for seq in self._matching(asked["next_by_subj"] or ">") if seq >= asked["seq"]]
        else:
            found = [seq for seq, _ in self.stored if seq == asked["seq"]]
        batch = asked.get("batch", 0)
        taken = found[: batch or 1]
        return (taken, len(found) - len(taken) if batch else 0) if taken else None

    def _matching(self, subject_filter: str) -> list[int]:
        return [seq for seq, subject in self.stored if matches(subject_filter, subject)]

    def _last_of_each(self, asked: dict[str, Any]) -> tuple[list[int], int] | None:
        if asked["up_to_seq"] > self.last:
            # As nats-server's file store: it was never there.
            return None
        lasts: dict[str, int] = {}
        for seq, subject in self.stored:
            if seq <= (asked["up_to_seq"] or self.last) and any(matches(text, subject) for text in asked["multi_last"]):
                lasts[subject] = seq
        if not lasts:
            return None
        found = [seq for seq in sorted(lasts.values()) if seq >= asked["seq"]]
        taken = found[: asked["batch"]] if asked["batch"] else found
        return taken, len(found) - len(taken)


async def _apply(jet: Jet, model: Reference, kind: str, what: Any) -> None:
    stream = await jet.stream("S")
    if kind == "publish":
        for subject in what:
            model.last += 1
            model.stored.append((model.last, subject))
        await jet.publish_batch([(subject, b"") for subject in what])
    elif kind == "delete" and any(seq == what for seq, _ in model.stored):
        model.stored = [kept for kept in model.stored if kept[0] != what]
        await stream.delete_message(what)
    elif kind == "purge":
        model.stored = [kept for kept in model.stored if not matches(what, kept[1])]
        await stream.purge(filter=what)


async def _answer(jet: Jet, asked: dict[str, Any]) -> tuple[list[int], int] | None:
    try:
        reply = await jet.backend.direct_get("S", DirectGet(**asked))
    except MessageNotFoundError:
        return None
    sequences = [message.seq for message in reply.messages]
    if asked.get("batch") or "multi_last" in asked:
        assert reply.last_seq == (sequences[-1] if sequences else 0)
    return sequences, reply.num_pending


async def _run(steps: list[tuple[str, Any]]) -> None:
    async with pelton.open("memory:") as jet:
        await jet.create_stream("S", subjects=["a", "b.*", "c.>"], allow_direct=True)
        model = Reference()
        for kind, what in steps:
            if kind != "ask":
                await _apply(jet, model, kind, what)
            elif what.get("seq") or what.get("last_by_subj") or what.get("next_by_subj") or "multi_last" in what:
                assert await _answer(jet, what) == model.answer(what), what


@given(st.lists(st.one_of(change, st.tuples(st.just("ask"), question)), max_size=40))
def test_every_answer_is_what_a_search_gives(steps: list[tuple[str, Any]]) -> None:
    asyncio.run(_run(steps))
