"""Counters do what Python's ints do, whichever opener adds, purges, deletes, fails or reopens in between."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import pelton
from tests.model.machine import StoreMachine, openers

SUBJECTS = ("s.a", "s.b", "s.c.d")
AMOUNTS = st.one_of(st.integers(-3, 3), st.integers(-(10**30), 10**30))


class CounterMachine(StoreMachine):
    """Four openers of one file; for each subject the totals after each message that is still stored."""

    @initialize(per_subject=st.sampled_from([-1, 1, 2]))
    def create(self, per_subject: int) -> None:
        self.per_subject = per_subject
        self.run(
            self.jets[0].create_stream(
                "S", subjects=["s.>"], allow_msg_counter=True, max_msgs_per_subject=per_subject, duplicate_window=5
            )
        )
        self.last = 0
        self.totals: dict[str, dict[int, int]] = {subject: {} for subject in SUBJECTS}
        self.ids: dict[str, int] = {}

    def _total(self, subject: str) -> int:
        return list(self.totals[subject].values())[-1] if self.totals[subject] else 0

    def _added(self, subject: str, amount: int) -> int:
        self.last += 1
        mine = self.totals[subject]
        mine[self.last] = self._total(subject) + amount
        if self.per_subject > 0:
            for seq in list(mine)[: -self.per_subject]:
                del mine[seq]
        return mine[self.last]

    @rule(
        adds=st.lists(st.tuples(st.sampled_from(SUBJECTS), AMOUNTS), min_size=1, max_size=6),
        broken=st.sampled_from([None, None, 0, 2]),
        opener=openers,
    )
    def add(self, adds: list[tuple[str, int]], broken: int | None, opener: int) -> None:
        """Add at once, so that all share a transaction; a failing one rolls it back for all."""
        jet, wrong = self.jets[opener], _wrong()
        calls: list[Any] = [jet.add(subject, amount) for subject, amount in adds]
        if broken is not None:
            calls.insert(broken, jet.backend.publish("s.a", wrong))
        found = self.run(_together(calls))
        if broken is not None:
            assert isinstance(found.pop(min(broken, len(adds))), Exception)
        assert found == [self._added(subject, amount) for subject, amount in adds]

    @rule(subject=st.sampled_from(SUBJECTS), amount=AMOUNTS, msg_id=st.sampled_from("xy"), opener=openers)
    def add_once(self, subject: str, amount: int, msg_id: str, opener: int) -> None:
        known = self.ids.get(msg_id)
        found = self.run(self.jets[opener].add(subject, amount, msg_id=msg_id))
        if known is not None and known > self.now - 5 * 10**9:
            assert found == self._total(subject)
            return
        self.ids[msg_id] = self.now
        assert found == self._added(subject, amount)

    @rule(subject=st.sampled_from(SUBJECTS), what=st.sampled_from(["purge", "last", "first"]), opener=openers)
    def remove(self, subject: str, what: str, opener: int) -> None:
        mine = self.totals[subject]
        if what == "purge":
            self.run(_purge(self.jets[opener], subject))
            mine.clear()
        elif mine:
            seq = list(mine)[-1 if what == "last" else 0]
            self.run(_delete(self.jets[opener], seq))
            del mine[seq]

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "totals"):
            return
        for jet in self.jets:
            for subject in SUBJECTS:
                assert self.run(_total(jet, subject)) == self._total(subject)
        self.check_rows()


def _wrong() -> Any:
    return None


async def _together(calls: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def _total(jet: pelton.Jet, subject: str) -> int:
    return await (await jet.stream("S")).counter(subject)


async def _purge(jet: pelton.Jet, subject: str) -> None:
    await (await jet.stream("S")).purge(filter=subject)


async def _delete(jet: pelton.Jet, seq: int) -> None:
    await (await jet.stream("S")).delete_message(seq)


TestCounters = CounterMachine.TestCase
