"""Transactions compared with plain Python: what is kept, undone or refused, whatever is written before and after."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import pelton
from pelton.api import PeltonError
from tests.model.machine import StoreMachine, openers

SUBJECTS = ("s.a", "s.b")


class Undo(Exception):  # noqa: N818  # it is no error
    """Ends a block on purpose."""


@dataclass
class Model:
    """The contents of the store: messages by sequence, used ids, rows, messages delivered and not settled."""

    kept: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    last: int = 0
    ids: set[str] = field(default_factory=set)
    rows: dict[int, str] = field(default_factory=dict)
    out: set[int] = field(default_factory=set)


publishes = st.tuples(st.just("publish"), st.sampled_from(SUBJECTS), st.sampled_from(["", "", "one", "two"]))
batches = st.tuples(st.just("batch"), st.integers(0, 4), st.booleans())
expects = st.tuples(st.just("expect"), st.integers(-1, 1), st.none())
rows = st.tuples(st.just("row"), st.integers(0, 5), st.sampled_from(["x", "y"]))
acks = st.tuples(st.just("ack"), st.integers(0, 5), st.sampled_from(["ack", "ack", "term"]))
steps = st.one_of(publishes, batches, expects, rows, acks)
blocks = st.recursive(
    st.lists(steps, max_size=6),
    lambda inner: st.lists(st.one_of(steps, st.tuples(st.just("block"), inner, st.booleans())), max_size=5),
    max_leaves=12,
)


class TransactionMachine(StoreMachine):
    """Four openers of one file; each may hold a transaction open."""

    @initialize()
    def make(self) -> None:
        self.model = Model()
        self.messages: dict[int, pelton.Message] = {}
        self.run(self._make())

    async def _make(self) -> None:
        stream = await self.jets[0].create_stream("S", subjects=["s.>"])
        await stream.create_consumer(durable_name="c", ack_wait=1_000_000, max_ack_pending=4)
        async with self.jets[0].transaction() as tx:
            await tx.sql("CREATE TABLE mine(id INTEGER PRIMARY KEY, what TEXT NOT NULL UNIQUE)")

    @rule(block=blocks, keep=st.booleans(), opener=openers, other=openers)
    def transact(self, block: list[Any], keep: bool, opener: int, other: int) -> None:
        """Run a block in a transaction, keep or undo it; another task of the opener publishes at the same time."""
        after = self.run(self._transact(self.jets[opener], block, keep, copy.deepcopy(self.model)))
        if after is not None:
            self.model = after
        # What waited for the transaction comes after it.
        self._published("s.b", b"other", "")
        if other:
            self.run(self.jets[other].publish("s.a", b"plain"))
            self._published("s.a", b"plain", "")

    async def _transact(self, jet: pelton.Jet, block: list[Any], keep: bool, model: Model) -> Model | None:
        theirs: asyncio.Task[Any] | None = None
        try:
            async with jet.transaction() as tx:
                await tx.sql("SELECT 1")
                theirs = asyncio.create_task(jet.publish("s.b", b"other"))
                model = await self._block(jet, tx, block, model)
                assert not theirs.done()
                await self._look(jet, model)
                if not keep:
                    raise Undo
        except Undo:
            return None
        finally:
            assert theirs is not None
            await theirs
        return model

    async def _block(self, jet: pelton.Jet, tx: pelton.Transaction, block: list[Any], model: Model) -> Model:
        for kind, first, second in block:
            if kind == "block":
                model = await self._inner(jet, tx, first, second, model)
            else:
                await self._step(tx, kind, first, second, model)
        return model

    async def _inner(self, jet: pelton.Jet, tx: Any, block: list[Any], keep: bool, model: Model) -> Model:
        try:
            async with tx.savepoint() if len(block) % 2 else jet.transaction():
                inner = await self._block(jet, tx, block, copy.deepcopy(model))
                if not keep:
                    raise Undo
        except Undo:
            return model
        return inner

    async def _step(self, tx: pelton.Transaction, kind: str, first: Any, second: Any, model: Model) -> None:
        try:
            await getattr(self, f"_{kind}")(tx, first, second, model)
        except PeltonError:
            # A publish without a condition is never refused.
            if kind == "publish":
                raise

    async def _publish(self, tx: pelton.Transaction, subject: str, msg_id: str, model: Model) -> None:
        ack = await tx.publish(subject, b"tx", msg_id=msg_id or None)
        assert ack.duplicate == (msg_id in model.ids)
        if not ack.duplicate:
            self._published(subject, b"tx", msg_id, model)
            assert ack.seq == model.last

    async def _batch(self, tx: pelton.Transaction, size: int, good: bool, model: Model) -> None:
        messages: list[Any] = [("s.a", b"batch")] * size + ([] if good else [("elsewhere", b"")])
        found = await tx.publish_batch(messages)
        assert good
        for ack in found:
            self._published("s.a", b"batch", "", model)
            assert ack.seq == model.last

    async def _expect(self, tx: pelton.Transaction, offset: int, _: None, model: Model) -> None:
        if model.last + offset < 0:
            return
        await tx.publish("s.a", b"expect", expected_last_seq=model.last + offset)
        assert offset == 0
        self._published("s.a", b"expect", "", model)

    async def _row(self, tx: pelton.Transaction, number: int, what: str, model: Model) -> None:
        possible = number not in model.rows and what not in model.rows.values()
        # The first of the two is undone with the second.
        await tx.sql(
            "DELETE FROM mine WHERE id=100 + :id; INSERT INTO mine VALUES(:id, :what)", {"id": number, "what": what}
        )
        assert possible
        model.rows[number] = what

    async def _ack(self, tx: pelton.Transaction, index: int, kind: str, model: Model) -> None:
        if not self.messages:
            return
        seq = sorted(self.messages)[index % len(self.messages)]
        say = tx.ack if kind == "ack" else tx.term
        await say(self.messages[seq])
        assert seq in model.out
        model.out.discard(seq)

    def _published(self, subject: str, data: bytes, msg_id: str, model: Model | None = None) -> None:
        model = model or self.model
        model.last += 1
        model.kept[model.last] = (subject, data)
        if msg_id:
            model.ids.add(msg_id)

    @rule(opener=openers)
    def fetch(self, opener: int) -> None:
        for message in self.run(_fetched(self.jets[opener])):
            self.messages[message.delivered.seq] = message
            self.model.out.add(message.delivered.seq)

    async def _look(self, jet: pelton.Jet, model: Model) -> None:
        """The transaction's own task reads its own writes."""
        stream = await jet.stream("S")
        assert (await stream.info()).state.last_seq == model.last
        assert (await (await stream.consumer("c")).info()).num_ack_pending == len(model.out)

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        model = self.model
        for jet in self.jets:
            assert self.run(_shown(jet)) == (model.kept, model.last, len(model.out), model.rows)
        self.check_rows()


async def _fetched(jet: pelton.Jet) -> list[pelton.Message]:
    return await (await (await jet.stream("S")).consumer("c")).fetch(2, no_wait=True)


async def _shown(jet: pelton.Jet) -> tuple[Any, ...]:
    stream = await jet.stream("S")
    state = (await stream.info()).state
    kept = {}
    for seq in range(1, state.last_seq + 1):
        message = await stream.get_message(seq)
        kept[seq] = (message.subject, message.data)
    pending = (await (await stream.consumer("c")).info()).num_ack_pending
    async with jet.transaction() as tx:
        rows = dict(await tx.sql("SELECT id, what FROM mine"))
    return kept, state.last_seq, pending, rows


TestTransactions = TransactionMachine.TestCase
