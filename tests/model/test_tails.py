"""The state of a stream equals a recount of its messages, however far its row is behind, for every kind of stream."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import pelton
from tests.model.machine import StoreMachine, openers
from tests.storage.stores import raw

_KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"allow_atomic": True, "allow_rollup_hdrs": True},
    "packed": {"compression": "s2", "allow_atomic": True},
    "work": {"retention": "workqueue", "allow_atomic": True},
    "interest": {"retention": "interest"},
    "last": {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    "few": {"max_msgs": 5},
    "small": {"max_bytes": 700},
    "old": {"max_age": 5},
    "timed": {"allow_msg_ttl": True, "subject_delete_marker_ttl": 1},
}
_COPIES: Final[dict[str, dict[str, Any]]] = {
    "mirror": {"mirror": {"name": "plain"}},
    "part": {"mirror": {"name": "work", "filter_subject": "work.a"}},
    "sourced": {"sources": [{"name": "plain"}, {"name": "last"}]},
}
_NAMES: Final = (*_KINDS, *_COPIES)
kinds: Final = st.sampled_from(tuple(_KINDS))
subjects: Final = st.sampled_from(["a", "b", "c.é"])
payloads: Final = st.sampled_from([b"", b"x" * 50, b"y" * 400])
hows: Final = st.sampled_from(["sub", "all"])
batches: Final = st.lists(st.tuples(subjects, payloads), min_size=1, max_size=7)


class Tails(StoreMachine):
    """Four openers; nothing is expected but that every number agrees with the rows."""

    @initialize()
    def create(self) -> None:
        self.run(self._create())

    async def _create(self) -> None:
        for name, config in _KINDS.items():
            stream = await self.jets[0].create_stream(name, subjects=[f"{name}.>"], **config)
            if name in ("plain", "work"):
                await stream.create_consumer(durable_name="c", ack_wait=1_000_000, max_ack_pending=-1)
        for name, config in _COPIES.items():
            await self.jets[0].create_stream(name, **config)

    @rule(kind=kinds, subject=subjects, data=payloads, opener=openers, number=st.integers(1, 4))
    def publish(self, kind: str, subject: str, data: bytes, opener: int, number: int) -> None:
        for _ in range(number):
            self.run(self.jets[opener].publish(f"{kind}.{subject}", data))

    @rule(kind=kinds, batch=batches, opener=openers)
    def publish_batch(self, kind: str, batch: list[tuple[str, bytes]], opener: int) -> None:
        self.run(self.jets[opener].publish_batch([(f"{kind}.{subject}", data) for subject, data in batch]))

    @rule(kind=st.sampled_from(["plain", "packed", "work"]), batch=batches, fails=st.booleans(), opener=openers)
    def publish_atomic(self, kind: str, batch: list[tuple[str, bytes]], fails: bool, opener: int) -> None:
        asked: list[Any] = [(f"{kind}.{subject}", data) for subject, data in batch]
        if fails:
            asked.append((f"{kind}.a", b"", {"Nats-Expected-Last-Subject-Sequence": "999999"}))
        self.run(_tried(self.jets[opener].publish_atomic(asked)))

    @rule(
        kind=st.sampled_from(["plain", "last"]), subject=subjects, how=st.sampled_from(["sub", "all"]), opener=openers
    )
    def roll_up(self, kind: str, subject: str, how: str, opener: int) -> None:
        self.run(self.jets[opener].publish(f"{kind}.{subject}", b"r", headers={"Nats-Rollup": how}))

    @rule(subject=subjects, seconds=st.sampled_from(["1", "5"]), opener=openers)
    def publish_timed(self, subject: str, seconds: str, opener: int) -> None:
        self.run(self.jets[opener].publish(f"timed.{subject}", b"t", headers={"Nats-TTL": seconds}))

    @rule(undone=st.booleans(), batch=batches, opener=openers)
    def transact(self, undone: bool, batch: list[tuple[str, bytes]], opener: int) -> None:
        self.run(_tried(self._transact(undone, batch, opener)))

    async def _transact(self, undone: bool, batch: list[tuple[str, bytes]], opener: int) -> None:
        async with self.jets[opener].transaction() as tx:
            for subject, data in batch:
                await tx.publish(f"plain.{subject}", data)
            await tx.publish("work.a", b"tx")
            if undone:
                raise KeyError

    @rule(name=st.sampled_from(_NAMES), at=st.floats(0, 1), opener=openers)
    def delete(self, name: str, at: float, opener: int) -> None:
        self.run(_tried(self._delete(name, at, opener)))

    async def _delete(self, name: str, at: float, opener: int) -> None:
        stream = await self.jets[opener].stream(name)
        state = (await stream.info()).state
        await stream.delete_message(state.first_seq + round(at * (state.last_seq - state.first_seq)))

    @rule(name=st.sampled_from(_NAMES), subject=st.sampled_from(["", "a"]), keep=st.integers(0, 3), opener=openers)
    def purge(self, name: str, subject: str, keep: int, opener: int) -> None:
        wanted: dict[str, Any] = {"filter": f"{name}.{subject}"} if subject else {}
        self.run(self._purge(name, opener, keep=keep, **wanted))

    async def _purge(self, name: str, opener: int, **wanted: Any) -> None:
        await (await self.jets[opener].stream(name)).purge(**wanted)

    @rule(name=st.sampled_from(["plain", "work"]), take=st.integers(1, 9), ack=st.integers(1, 511), opener=openers)
    def settle(self, name: str, take: int, ack: int, opener: int) -> None:
        """Take some messages; acknowledge some of them, in the middle of the others."""
        self.run(self._settle(name, take, ack, opener))

    async def _settle(self, name: str, take: int, ack: int, opener: int) -> None:
        consumer = await (await self.jets[opener].stream(name)).consumer("c")
        for number, message in enumerate(await consumer.fetch(take, timeout=0)):
            if ack >> number & 1:
                await message.ack()
            else:
                await message.nak()

    @rule(compression=st.sampled_from(["none", "s2"]), per_subject=st.sampled_from([-1, 2]), opener=openers)
    def reconfigure(self, compression: str, per_subject: int, opener: int) -> None:
        change = self.jets[opener].update_stream("packed", compression=compression, max_msgs_per_subject=per_subject)
        self.run(change)

    @precondition(lambda self: self.jets)
    @invariant()
    def numbers_agree(self) -> None:
        for jet in self.jets[:2]:
            found = {name: self.run(_state(jet, name)) for name in _NAMES}
            for name, state in found.items():
                assert (state.messages, state.first_seq, state.last_seq) == self._rows(name, state)
        self.check_rows()

    def _rows(self, name: str, state: pelton.StreamState) -> tuple[int, int, int]:
        with raw(Path(self.path)) as connection:
            [(stream,)] = connection.execute("SELECT id FROM streams WHERE name=?", (name,)).fetchall()
            [(number, first, last)] = connection.execute(
                f"SELECT count(*), min(seq), max(seq) FROM m_{stream}"
            ).fetchall()
        return number, first or state.first_seq, max(last or 0, state.last_seq)


async def _state(jet: pelton.Jet, name: str) -> pelton.StreamState:
    return (await (await jet.stream(name)).info()).state


async def _tried(work: Any) -> None:
    with suppress(pelton.ApiError, KeyError):
        await work


TestTails = Tails.TestCase
