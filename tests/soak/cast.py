"""The processes of the soak: publishers, workers that pull, push subscribers; they step the wall clock of all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import pelton
from pelton.api import AckKind, AckOp, AckRejectedError, Delivered, Outgoing
from tests.crash.roles import name_of, payload
from tests.journal import machine_ns
from tests.kit.clocks import SharedClock, runtime_with
from tests.soak import plan
from tests.soak.record import Record

_STEP_NS = 1_500_000_000
_LOOPS = 3


class Actor:
    """One process: a store, a record, and a report to the test after every round."""

    def __init__(self, pipe: Connection, folder: Path, who: str, seed: int) -> None:
        self.pipe = pipe
        self.random = Random(seed)
        self.record = Record(folder, who)
        self.clock = SharedClock(folder / "clock")
        self.stopped = False

    def _offset(self) -> int:
        return self.random.choice((0, 0, self.random.randint(-_STEP_NS, _STEP_NS)))

    async def live(self, path: Path, *rounds: Callable[[pelton.Jet], Awaitable[None]]) -> None:
        """Repeat each of the rounds until told to stop."""
        async with pelton.open(path, runtime=runtime_with(self.clock)) as jet:
            self.pipe.send("open")
            await asyncio.gather(*(self._repeat(one, jet) for one in rounds))
        self.pipe.send("closed")

    async def _repeat(self, one: Callable[[pelton.Jet], Awaitable[None]], jet: pelton.Jet) -> None:
        while not self.stopped:
            if self.random.random() < 0.03:
                self._step_clock()
            await one(jet)
            self.pipe.send("did")
            self.stopped = self.stopped or self.pipe.poll()

    def _step_clock(self) -> None:
        self.clock.jump_to(self._offset())
        self.pipe.send("clock steps")

    # --- answers

    async def answer(self, jet: pelton.Jet, found: list[Delivered], policy: str) -> None:
        """Settle deliveries in one of the usual ways, or forget some."""
        if not found or policy == "none":
            return
        if policy == "all":
            found = found[-1:]
        if self.random.random() < 0.6:
            await self._say(jet, found, "ack")
            return
        for delivered in found:
            await self._answer_one(jet, delivered)

    async def _answer_one(self, jet: pelton.Jet, delivered: Delivered) -> None:
        how = self.random.choice(("ack", "ack", "nak", "term", "progress", "forget", "late", "settle"))
        if how == "settle":
            await self._settle(jet, delivered)
        elif how == "progress":
            await self._say(jet, [delivered], "progress")
            await self._say(jet, [delivered], "ack")
        elif how == "late":
            await asyncio.sleep(self.random.uniform(0, 0.7))
            await self._say(jet, [delivered], "ack")
        elif how != "forget":
            await self._say(jet, [delivered], how)  # type: ignore[arg-type]  # what is left are kinds of acks

    async def _say(self, jet: pelton.Jet, found: list[Delivered], kind: AckKind) -> None:
        delay = self.random.choice((0, 0, 300_000_000)) if kind == "nak" else 0
        ops = [AckOp(kind=kind, seq=d.seq, consumer_seq=d.consumer_seq, delay_ns=delay, token=d.token) for d in found]
        self.record.note(*(self.record.of("settling", d, how=kind) for d in found))
        answers = await jet.backend.ack(found[0].stream, found[0].consumer, ops)
        steps = []
        for delivered, answer in zip(found, answers, strict=True):
            assert answer is None or isinstance(answer, AckRejectedError), answer
            steps.append(self.record.of("refused" if answer else "settled", delivered, how=kind))
        self.record.note(*steps)

    async def _settle(self, jet: pelton.Jet, delivered: Delivered) -> None:
        """Acknowledge and publish in one transaction."""
        d, record = delivered, self.record
        name = f"{record.who}-d{d.stream}{d.consumer}{d.token}"
        subject = f"log.{self.random.randrange(plan.SUBJECTS)}"
        record.note(record.step("publishing", "log", subject=subject, name=name), record.of("settling", d, how="ack"))
        ack = AckOp(seq=d.seq, consumer_seq=d.consumer_seq, token=d.token)
        try:
            (stored,) = await jet.backend.settle([Outgoing(subject, payload(name))], d.stream, d.consumer, ack)
        except AckRejectedError:
            record.note(record.of("refused", d, how="ack", name=name))
        else:
            record.note(
                record.step("published", "log", subject=subject, name=name, seq=stored.seq),
                record.of("settled", d, how="ack"),
            )

    def took(self, found: list[Delivered], began: int) -> list[Delivered]:
        """Record the delivered messages, in full."""
        self.record.note(*(self.record.of("delivered", d, name=name_of(d.data), began=began) for d in found))
        return found


class Publishing:
    """A publisher's round: to one of the streams, alone, side by side, in a batch, or in an atomic one."""

    def __init__(self, actor: Actor, streams: Mapping[str, Mapping[str, Any]]) -> None:
        self._actor = actor
        self._streams = streams
        self._count = 0

    async def __call__(self, jet: pelton.Jet) -> None:
        random, record = self._actor.random, self._actor.record
        stream = random.choice(list(self._streams))
        messages = []
        for _ in range(random.choice((1, 1, 2, 5, 12))):
            self._count += 1
            messages.append((f"{stream}.{random.randrange(plan.SUBJECTS)}", f"{record.who}-{self._count}"))
        record.note(*(record.step("publishing", stream, subject=s, name=n) for s, n in messages))
        seqs = await self._publish(jet, [(s, payload(n)) for s, n in messages], self._streams[stream])
        steps = zip(messages, seqs, strict=True)
        record.note(*(record.step("published", stream, subject=s, name=n, seq=seq) for (s, n), seq in steps))
        await asyncio.sleep(random.uniform(0, 0.15))

    async def _publish(
        self, jet: pelton.Jet, outgoing: list[tuple[str, bytes]], fields: Mapping[str, Any]
    ) -> Sequence[int]:
        ways = ("batch", "alone", "atomic") if fields.get("allow_atomic") else ("batch", "alone")
        way = self._actor.random.choice(ways)
        if way == "batch":
            return [ack.seq for ack in await jet.publish_batch(outgoing)]
        if way == "alone":
            return [ack.seq for ack in await asyncio.gather(*(jet.publish(s, d) for s, d in outgoing))]
        last = (await jet.publish_atomic(outgoing)).seq
        return range(last - len(outgoing) + 1, last + 1)


class PullSource:
    """A worker's round: some messages of one of the consumers, each settled in one of the usual ways."""

    def __init__(self, actor: Actor, consumers: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        self._actor = actor
        self._consumers = consumers
        self._keys = [key for key, fields in consumers.items() if "deliver_subject" not in fields]

    async def __call__(self, jet: pelton.Jet) -> None:
        random = self._actor.random
        stream, name = key = random.choice(self._keys)
        consumer, began = await (await jet.stream(stream)).consumer(name), machine_ns()
        pull = _pull(self._consumers[key].get("priority_policy"), random)
        found = await consumer.fetch(random.choice((1, 3, 20)), timeout=random.uniform(0, 0.3), **pull)
        taken = self._actor.took([message.delivered for message in found], began)
        await self._actor.answer(jet, taken, consumer.config.ack_policy)


def _pull(policy: str | None, random: Random) -> dict[str, Any]:
    if policy is None:
        return {}
    more: dict[str, Any] = {"group": "g"}
    if policy == "prioritized":
        more["priority"] = random.randrange(3)
    elif policy == "overflow" and random.random() < 0.5:
        more["min_pending"] = random.randrange(1, 20)
    return more


async def publisher(pipe: Connection, path: Path, folder: Path, who: str, seed: int) -> None:
    """Publish to all streams, alone, side by side and in batches."""
    actor = Actor(pipe, folder, who, seed)
    await actor.live(path, Publishing(actor, plan.STREAMS))


async def worker(pipe: Connection, path: Path, folder: Path, who: str, seed: int) -> None:
    """Pull from any of the consumers, some at a time."""
    actor = Actor(pipe, folder, who, seed)
    await actor.live(path, *[PullSource(actor, plan.CONSUMERS)] * _LOOPS)


async def listener(pipe: Connection, path: Path, folder: Path, who: str, seed: int) -> None:
    """Subscribe to the push consumers, as a member of one of their groups."""
    actor = Actor(pipe, folder, who, seed)

    async def listen(jet: pelton.Jet) -> None:
        key = actor.random.choice(plan.PUSHED)
        consumer = await (await jet.stream(key[0])).consumer(key[1])
        messages = consumer.messages(prefetch=10)
        try:
            for _ in range(actor.random.randrange(1, 60)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        message = await anext(messages)
                        actor.took([message.delivered], 0)
                        await actor.answer(jet, [message.delivered], "explicit")
                        continue
                break
        finally:
            await messages.aclose()

    await actor.live(path, listen, listen)
