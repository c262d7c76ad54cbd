"""Disturbed delivery: paused, reset, with new filters, rolled back; exactly as the plain model does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import pelton
from pelton.api import AckOp, PullRequest, consumer_config
from tests.model.machine import openers
from tests.model.reference import Asked
from tests.model.test_consumer import SUBJECTS, ConsumerMachine


def _exists(machine: Any) -> bool:
    return hasattr(machine, "held")


class DeliveryMachine(ConsumerMachine):
    """The same consumer, with everything that can happen to it. ``delivered`` is its position in the stream."""

    paused_until = 0
    delivered = -1

    # --- steering

    @precondition(_exists)
    @rule(seconds=st.sampled_from([-1, 1, 4]), opener=openers)
    def pause(self, seconds: int, opener: int) -> None:
        self.paused_until = self.now + seconds * 10**9 if seconds > 0 else 0
        until = pelton.rfc3339(self.paused_until) if self.paused_until else ""
        self.run(_pause(self.jets[opener], until))

    @precondition(_exists)
    @rule(seq=st.integers(0, 12), opener=openers)
    def reset(self, seq: int, opener: int) -> None:
        """Continue from a sequence, or from the first message that is not settled."""
        self.stream.age(self.now)
        policy = self.model.config.deliver_policy
        if policy == "last_per_subject" or (seq and policy not in ("all", "by_start_sequence")):
            return
        if seq > self.stream.last + 1 or 0 < seq < self.model.config.opt_start_seq:
            return
        asked, seq = seq, seq or self._floor() + 1
        assert self.run(_reset(self.jets[opener], asked)) == seq
        self.model.deliveries = 0
        self.model.pending.clear()
        self.model.removed.clear()
        self.model.met.clear()
        self.model.start = self.delivered = seq - 1

    @precondition(_exists)
    @rule(filters=st.sampled_from([("s.b",), ("s.*",), ("s.a", "s.b.>")]), opener=openers)
    def filter_anew(self, filters: tuple[str, ...], opener: int) -> None:
        """Skipped messages stay skipped; waiting ones that no longer match are dropped."""
        self.stream.age(self.now)
        model = self.model
        one = filters[0] if len(filters) == 1 else ""
        wanted = consumer_config(model.config, filter_subject=one, filter_subjects=() if one else filters)
        cursor = self._cursor()
        before = set(model.ahead())
        self.run(_create(self.jets[opener], wanted))
        model.config = wanted
        left = before & set(model.ahead())
        model.met |= {seq for seq in self.stream.messages if seq <= cursor and seq not in left}

    def _cursor(self) -> int:
        """Ask how far the consumer has read: the model does not predict it."""
        backend: Any = self.jets[0].backend
        return int(backend._db.value("SELECT cursor FROM consumer_state"))

    @rule(subject=st.sampled_from(["", "s.a", "s.b", "s.b.>"]), keep=st.integers(0, 2), opener=openers)
    def purge(self, subject: str, keep: int, opener: int) -> None:
        if _exists(self):
            self.stream.age(self.now)
            assert self.run(_purge(self.jets[opener], subject, keep)) == self.stream.purge(subject, 0, keep)
            # A purge moves the consumer along.
            self.delivered = -1

    # --- disturbed

    @precondition(lambda self: getattr(self, "held", None))
    @rule(
        subject=st.sampled_from(SUBJECTS),
        batch=st.integers(1, 4),
        pick=st.integers(0, 40),
        kind=st.sampled_from(["ack", "term", "nak"]),
        opener=openers,
    )
    def all_at_once_beside_one_that_fails(self, subject: str, batch: int, pick: int, kind: Any, opener: int) -> None:
        """Roll back one transaction of a pull, an ack and a publish: each is done again, alone, once."""
        jet, backend = self.jets[opener], self._backend(opener)
        seq, name = self.held[-1 - pick % len(self.held)]
        got, answers, _ = self.run(
            _together(
                backend,
                backend.pull("S", "c", PullRequest(batch=batch, no_wait=True)),
                backend.ack("S", "c", [AckOp(kind=kind, seq=seq, consumer_seq=name)]),
                jet.publish(subject, b"x"),
            )
        )
        self._same_deliveries(got, batch)
        assert [answer is None for answer in answers] == [self.model.ack(kind, seq, name, 0, self.now)]
        self.stream.publish(subject, b"x", -1, Asked(), self.now)

    def _backend(self, opener: int) -> Any:
        return self.jets[opener].backend

    @rule(batch=st.integers(1, 6), opener=openers)
    def fetch(self, batch: int, opener: int) -> None:
        if _exists(self):
            got = self.run(self._backend(opener).pull("S", "c", PullRequest(batch=batch, no_wait=True)))
            self._same_deliveries(got, batch)

    def _same_deliveries(self, got: list[Any], batch: int) -> None:
        paused = self.now < self.paused_until
        expected = [] if paused else self.model.fetch(batch, self.now, [d.seq for d in got])
        assert [(d.seq, d.consumer_seq, d.num_delivered, d.num_pending) for d in got] == expected
        self.held += [(d.seq, d.consumer_seq) for d in got]
        self.delivered = max([self.delivered, *(d.seq for d in got)])

    # --- the same

    def _floor(self) -> int:
        """Below it everything is settled; messages that wait behind later deliveries are not."""
        self.model.forget_vanished()
        unsettled = [seq for seq in self.model.ahead() if seq <= self.delivered] + list(self.model.pending)
        return min([*(seq - 1 for seq in unsettled), self.delivered])

    @invariant()
    def positions(self) -> None:
        if not _exists(self):
            return
        self.stream.age(self.now)
        self.model.forget_vanished()
        info = self.run(_info(self.jets[0]))
        if self.delivered < 0:
            self.delivered = info.delivered.stream_seq
        assert info.delivered.stream_seq == self.delivered
        assert info.ack_floor.stream_seq == self._floor()
        least = min((entry.name for entry in self.model.pending.values()), default=self.model.deliveries + 1)
        assert info.ack_floor.consumer_seq == least - 1
        assert info.paused == (self.now < self.paused_until)


async def _together(backend: Any, *calls: Awaitable[Any]) -> list[Any]:
    """Make calls in one turn of the loop, and with them one that fails when all others are done."""

    async def first() -> None:
        await backend.stage(lambda: None, durable=False)

    async def last() -> None:
        try:
            await backend.stage(_fail, durable=False)
        except ZeroDivisionError:
            return
        raise AssertionError("it did not fail")

    _, *found, _ = await asyncio.gather(first(), *calls, last())
    return found


def _fail() -> None:
    raise ZeroDivisionError


async def _create(jet: pelton.Jet, config: pelton.ConsumerConfig) -> None:
    await (await jet.stream("S")).create_consumer(config)


async def _pause(jet: pelton.Jet, until: str) -> None:
    consumer = await (await jet.stream("S")).consumer("c")
    await (consumer.pause(until) if until else consumer.resume())


async def _reset(jet: pelton.Jet, seq: int) -> int:
    info: Any = await (await (await jet.stream("S")).consumer("c")).reset(seq)
    return int(info.reset_seq)


async def _purge(jet: pelton.Jet, subject: str, keep: int) -> int:
    return await (await jet.stream("S")).purge(filter=subject, keep=keep)


async def _info(jet: pelton.Jet) -> pelton.ConsumerInfo:
    return await (await (await jet.stream("S")).consumer("c")).info()


TestDelivery = DeliveryMachine.TestCase
