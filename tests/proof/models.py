"""Rounds without faults of real processes: programs, and the models or histories that say what they must do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import hypothesis
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import pelton
from pelton.api import AckOp, Delivered
from pelton.consumers import settle
from pelton.testing import manual_runtime
from tests.kit.judge.queue_history import HistoryEvent, check_queue
from tests.kit.patches import patched
from tests.locks.test_campaign_simulated import election_simulation
from tests.locks.test_locks_simulated import Troubled
from tests.model.test_batches import BatchMachine
from tests.model.test_consumer import ConsumerMachine
from tests.model.test_counters import CounterMachine
from tests.model.test_delivery import DeliveryMachine
from tests.model.test_interest import InterestMachine
from tests.model.test_mappings import MappedMachine
from tests.model.test_sourcing import Sourcing
from tests.model.test_stream import StreamMachine
from tests.model.test_tails import Tails
from tests.model.test_time import TimeMachine
from tests.model.test_transactions import TransactionMachine
from tests.proof.record import Tried
from tests.queue.keys.test_simulated import shop as keyed_shop
from tests.queue.limits.checks import broken
from tests.queue.limits.test_simulated import shop
from tests.queue.programs.cast import MAX_ATTEMPTS
from tests.queue.programs.program import Program, opened
from tests.queue.programs.test_programs import TOLERANCE, Stage
from tests.simulation.judge import judge
from tests.simulation.program import drawn
from tests.simulation.stage import play

MACHINES: Final[tuple[type[RuleBasedStateMachine], ...]] = (
    StreamMachine,
    ConsumerMachine,
    DeliveryMachine,
    TimeMachine,
    TransactionMachine,
    InterestMachine,
    BatchMachine,
    Sourcing,
    MappedMachine,
    CounterMachine,
    Tails,
)
_EXAMPLES: Final = 20
_ACTS: Final = 60
_HISTORIES: Final = 6
_SHOPS: Final = 8
_SIMULATED: Final = 20
_WORLDS: Final = 4
_OWNERS: Final = 6
_STEPS: Final = 250
_FLIPS: Final = 120
_SUBJECTS: Final = 20
_MESSAGES: Final = 80


async def models(folder: Path, seed: int) -> Tried:
    """Let four openers of a store do what a model does: number n plays the machine n modulo their number."""
    machine = MACHINES[seed % 1_000_000 % len(MACHINES)]
    seeded = hypothesis.seed(seed)(type(machine.__name__, (machine,), {}))
    settings = hypothesis.settings(
        max_examples=_EXAMPLES,
        stateful_step_count=30,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    # Programs are short: two acks are many.
    with patched(settle, _MANY=2):
        await asyncio.to_thread(run_state_machine_as_test, seeded, settings=settings)
    return Tried(models=_EXAMPLES)


async def jobs(folder: Path, seed: int) -> Tried:
    """Play random programs on queues, exclusive ones in turn, whose workers crash and whose clock jumps."""
    tried = Tried(models=_HISTORIES)
    for number in range(_HISTORIES):
        events = await _history(folder / f"{number}.pelton", seed * _HISTORIES + number, exclusive=number % 2 == 1)
        found = check_queue(events, exclusive=number % 2 == 1, max_attempts=MAX_ATTEMPTS, tolerance=TOLERANCE)
        tried.operations += len(events)
        tried.violations += [f"history {number}: {one.rule}: job {one.job}: {one.text}" for one in found]
        if found:
            break
    return tried


async def _history(path: Path, seed: int, *, exclusive: bool) -> list[HistoryEvent]:
    runtime, chance, events = manual_runtime(seed), Random(seed), list[HistoryEvent]()
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(pelton.open(path, sync="off", runtime=runtime)) for _ in range(2)]
        openings = [await opened(jet, exclusive, events.append) for jet in stores]
        program = Program(openings, chance, events.append)
        stage = Stage(openings, chance, runtime.clock, events.append)
        await stage.play(program, _ACTS)
        await program.finish()
        await stage.drain(program)
        await program.tell_the_end()
    return events


async def limits(folder: Path, seed: int) -> Tried:
    """Simulate workers of a queue with limits: never more jobs at a time, or starts in a time, than these allow."""
    violations = list[str]()
    for number in range(_SHOPS):
        simulated = shop(seed * _SHOPS + number)
        await simulated.run(20, 20.0)
        violations += [f"shop {number}: {what}" for what in broken(simulated.rules.limits, simulated.spans)]
    return Tried(models=_SHOPS, violations=violations)


async def locks(folder: Path, seed: int) -> Tried:
    """Simulate clients that use locks while messages are lost, clients are paused, and clocks stepped."""
    for number in range(_WORLDS):
        await Troubled(seed * _SIMULATED + number).play()
    return Tried(models=_WORLDS)


async def elections(folder: Path, seed: int) -> Tried:
    """Simulate elections: never two leaders, always one again."""
    return await asyncio.to_thread(_elected, seed)


def _elected(seed: int) -> Tried:
    violations = list[str]()
    for number in range(_SIMULATED):
        one = election_simulation(seed * _SIMULATED + number)
        one.run(15)
        one.calm()
        one.run(4)
        leaders = one.leaders()
        one.close()
        violations += [f"election {number}: {what}" for what in one.contradictions()]
        if len(leaders) != 1:
            violations.append(f"election {number}: {len(leaders)} leaders at the end")
    return Tried(models=_SIMULATED, violations=violations)


async def keys(folder: Path, seed: int) -> Tried:
    """Simulate workers of an exclusive queue: one job of a key at a time, in order, each in effect once."""
    violations = list[str]()
    for number in range(_WORLDS):
        violations += map(str, await keyed_shop(seed * _SIMULATED + number).run(20, 30.0))
    return Tried(models=_WORLDS, violations=violations)


async def simulation(folder: Path, seed: int) -> Tried:
    """Simulate processes of a store that are killed and stopped, whose disks fill and whose clocks are set."""
    return await asyncio.to_thread(_simulated, seed)


def _simulated(seed: int) -> Tried:
    tried, violations = Counter[str](), list[str]()
    for number in range(seed * _SIMULATED, (seed + 1) * _SIMULATED):
        program = drawn(number)
        played = play(program)
        tried["notes"] += len(played.history)
        tried["faults"] += sum(note.kind == "fault" for note in played.history)
        if broken := judge(program, played.history):
            violations += [f"simulation {number}: {one.rule}: {one.text}" for one in broken]
            violations.append(f"python -m tests.simulation {number}:{number + 1} makes it small, and keeps it")
    faults = {"simulated": tried["faults"]}
    return Tried(faults=faults, models=_SIMULATED, operations=tried["notes"], violations=violations)


# --- tokens


class _Owners:
    """Two openers of a work queue whose consumer is deleted and made again, and what may be settled by whom."""

    def __init__(self, jets: Sequence[pelton.Jet], random: Random) -> None:
        self._jets, self._random = jets, random
        self._held = list[Delivered]()
        self._last, self._settled = dict[int, int](), set[int]()
        self._newest = 0
        self.violations = list[str]()

    async def begin(self) -> None:
        await self._jets[0].create_stream("s", subjects=["s"], retention="workqueue")
        await self._make()

    async def _make(self) -> None:
        await (await self._jets[0].stream("s")).create_consumer(durable_name="c", ack_wait=1, max_ack_pending=100)

    async def step(self) -> None:
        jet, way = self._random.choice(self._jets), self._random.random()
        if way < 0.2:
            await jet.publish_batch([("s", b"x")] * self._random.choice((1, 12)))
        elif way < 0.25:
            await (await jet.stream("s")).delete_consumer("c")
            self._last.clear()
            await self._make()
        elif way < 0.6:
            await self._fetch(jet)
        elif self._held:
            await self._ack(jet)

    async def _fetch(self, jet: pelton.Jet) -> None:
        consumer = await (await jet.stream("s")).consumer("c")
        for message in await consumer.fetch(self._random.choice((1, 3, 10)), no_wait=True):
            one = message.delivered
            if one.token <= self._newest:
                self.violations.append(f"token {one.token} was given after token {self._newest}")
            if one.seq in self._settled:
                self.violations.append(f"message {one.seq} was delivered though it was settled")
            self._newest = max(self._newest, one.token)
            self._last[one.seq] = one.token
            self._held.append(one)

    async def _ack(self, jet: pelton.Jet) -> None:
        """Acknowledge some deliveries, old ones too; those that are the last of their messages settle them."""
        some = {one.seq: one for one in self._random.choices(self._held[-30:], k=self._random.choice((1, 3, 16)))}
        acks = [AckOp(seq=one.seq, consumer_seq=one.consumer_seq, token=one.token) for one in some.values()]
        for one, refused in zip(some.values(), await jet.backend.ack("s", "c", acks), strict=True):
            is_its = self._last.get(one.seq) == one.token and one.seq not in self._settled
            if is_its != (refused is None):
                self.violations.append(f"an ack of message {one.seq}, token {one.token}, was answered with {refused!r}")
            if refused is None:
                self._settled.add(one.seq)


async def tokens(folder: Path, seed: int) -> Tried:
    """Deliver, redeliver and settle by two openers, while the consumer is made again: tokens grow, one settles once."""
    violations = list[str]()
    for number in range(_OWNERS):
        runtime, random = manual_runtime(seed), Random(seed * _OWNERS + number)
        path = folder / f"{number}.pelton"
        async with (
            pelton.open(path, sync="off", runtime=runtime) as one,
            pelton.open(path, sync="off", runtime=runtime) as two,
        ):
            owners = _Owners((one, two), random)
            await owners.begin()
            for _ in range(_STEPS):
                await owners.step()
                if random.random() < 0.1:
                    runtime.clock.advance(random.choice((0.3, 1.1)))
        violations += owners.violations
    return Tried(models=_OWNERS, violations=violations)


# --- damage


async def damage(folder: Path, seed: int) -> Tried:
    """Flip bits of a store: what is read is what was stored, or it is refused; no other error, and no other bytes."""
    random, path = Random(seed), folder / "a.pelton"
    stored = await _stocked(path, random)
    whole, tried = path.read_bytes(), Tried(faults={"flip": _FLIPS})
    for number in range(_FLIPS):
        content = bytearray(whole)
        for _ in range(random.choice((1, 1, 3))):
            content[random.randrange(100, len(content))] ^= 1 << random.randrange(8)
        damaged = folder / f"{number}.pelton"
        damaged.write_bytes(content)
        for name, found in await _read(damaged):
            tried.operations += 1
            if stored.get(name) != found:
                tried.violations.append(f"flip {number}: {name} is read as {found[:40]!r}")
        for one in folder.glob(f"{number}.pelton*"):
            one.unlink()
    return tried


Name = tuple[str, int, str]
"""A stream, a sequence in it, the subject there."""


async def _stocked(path: Path, random: Random) -> dict[Name, bytes]:
    async with pelton.open(path, sync="off") as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
        bucket = await jet.create_bucket("b")
        data = [random.randbytes(random.choice((20, 300, 6000))) for _ in range(_MESSAGES)]
        subjects = [f"s.{number % _SUBJECTS}" for number in range(_MESSAGES)]
        acks = await jet.publish_batch(list(zip(subjects, data, strict=True)))
        stored = {("s", ack.seq, subject): one for ack, subject, one in zip(acks, subjects, data, strict=True)}
        for number, one in enumerate(data[:20]):
            stored["KV_b", await bucket.put(f"k{number}", one), f"$KV.b.k{number}"] = one
    return stored


async def _read(path: Path) -> list[tuple[Name, bytes]]:
    """Return everything that a store still gives, read in different ways."""
    found = list[tuple[Name, bytes]]()
    try:
        async with pelton.open(path, sync="off") as jet:
            for look in (_fetched, _fetched_in_turns, _got, _kept):
                try:
                    found += await look(jet)
                except pelton.PeltonError:
                    continue
    except pelton.PeltonError:
        pass
    return found


async def _fetched(jet: pelton.Jet) -> list[tuple[Name, bytes]]:
    consumer = await (await jet.stream("s")).create_consumer(durable_name="c", max_ack_pending=1000)
    fetched = [await consumer.fetch(batch, no_wait=True) for batch in (1, 2, 30, 100)]
    return [_named(one) for each in fetched for one in each]


async def _fetched_in_turns(jet: pelton.Jet) -> list[tuple[Name, bytes]]:
    stream, found = await jet.stream("s"), list[pelton.Message]()
    consumer = await stream.create_consumer(durable_name="d", max_ack_pending_per_subject=1, max_ack_pending=1000)
    # What was behind others of its subject is read in another way.
    while some := await consumer.fetch(7, no_wait=True):
        found += some
        await consumer.ack(some)
    return list(map(_named, found))


def _named(message: pelton.Message) -> tuple[Name, bytes]:
    return ("s", message.delivered.seq, message.subject), message.data


async def _got(jet: pelton.Jet) -> list[tuple[Name, bytes]]:
    stream, found = await jet.stream("s"), list[tuple[Name, bytes]]()
    looks: list[Any] = [stream.get_message(seq) for seq in range(1, _MESSAGES + 1)]
    looks += [stream.get_last_message(f"s.{number}") for number in range(_SUBJECTS)]
    for answer in await asyncio.gather(*looks, return_exceptions=True):
        if isinstance(answer, pelton.StoredMessage):
            found.append((("s", answer.seq, answer.subject), answer.data))
        elif not isinstance(answer, pelton.PeltonError):
            raise answer
    return found


async def _kept(jet: pelton.Jet) -> list[tuple[Name, bytes]]:
    bucket, found = await jet.bucket("b"), list[tuple[Name, bytes]]()
    async for key in bucket.keys():
        entry = await bucket.get(key)
        found.append((("KV_b", entry.revision, f"$KV.b.{key}"), entry.value or b""))
    return found
