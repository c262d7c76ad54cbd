"""The rounds of a proof: each is short, begins anew from its number, and says what it tried and what it found."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import hypothesis
from hypothesis import strategies as st

import pelton
from pelton.streams import subject_rows
from tests.cluster.network import network
from tests.crash import test_power as power_losses
from tests.differential.programs import programs
from tests.differential.stage import stage
from tests.differential.steps import Step
from tests.fuzz.play import PLAYS
from tests.fuzz.run import Fuzzing
from tests.fuzz.sides import running_pair
from tests.kit.linear import check_history
from tests.kit.nats_server import nats_server
from tests.kit.power import FailedSync, RecordingDisk
from tests.linear.rounds import Rounds as Histories
from tests.linear.worker import BUCKET
from tests.locks.test_campaign_simulated import election_simulation
from tests.locks.test_locks_simulated import Troubled
from tests.proof import faults
from tests.proof.record import Tried
from tests.queue.keys.test_simulated import shop
from tests.sourcing import test_network as feeding
from tests.storm import inherited, test_cancellation, test_full_disks
from tests.storm.disks import pretending_disk
from tests.storm.operations import Bench
from tests.storm.outcome import contradictions, undelivered
from tests.storm.storm import Storm

_TROUBLES: Final = 40
_PROGRAMS: Final = 400
_INPUTS: Final = 40_000
_FILLINGS: Final = 20
_OPERATIONS: Final = 2400
_LANES: Final = 6
_HISTORIES: Final = 20
_CUTS: Final = 30
_SIMULATED: Final = 20

Play = Callable[[Path, int], Awaitable[Tried]]


async def _storm(folder: Path, seed: int) -> Tried:
    """Kill, stop and mislead processes of every kind on a store of some schema, encrypted or not."""
    begins = (*inherited.VERSIONS, 0)
    version = begins[seed % len(begins)]
    storm = Storm(folder, f"proof-{seed}", encrypted=seed // len(begins) % 2 == 0, version=version)
    found = await storm.run(_TROUBLES)
    counts = found.counts
    tried = {
        "kill": counts["kills"],
        "stop": counts["stops"] + counts["long stops"],
        "clock": counts["jumps of the clock"],
        "rekey": counts["chores: rekey"],
        "migration": int(0 < version < inherited.VERSIONS[-1]),
    }
    words = ("published", "settled", "kept", "starts of jobs", "terms and locks", "bucket operations")
    return Tried(faults=tried, operations=sum(counts[word] for word in words), violations=found.problems)


@contextmanager
def _counted_soon() -> Iterator[None]:
    """Programs are short: power is also lost while subjects are counted."""
    with _patched(subject_rows, MOST_UNCOUNTED=9, FEW_SUBJECTS=2):
        yield


@contextmanager
def _patched(module: Any, **values: Any) -> Iterator[None]:
    """Set names of a module for as long as the context lasts."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


async def _power(folder: Path, seed: int) -> Tried:
    """Lose power at many moments of a program, whose syncs fail now and then; every third is that of four processes."""
    random = Random(f"proof-{seed}")
    with _counted_soon():
        if seed % 3 == 2:
            disk = await power_losses.recorded(folder, random)
        else:
            disk = RecordingDisk(f"recorder-{seed}")
            (folder / "live").mkdir()
            program = power_losses.Program(disk, folder / "live" / "a.pelton", random)
            try:
                await program.run()
            finally:
                await program.jet.close()
        try:
            await power_losses.check_images(disk, folder, random)
        finally:
            disk.close()
    failed = sum(isinstance(event, FailedSync) for event in disk.events)
    return Tried(faults={"power": power_losses._EACH, "sync": failed}, operations=len(disk.events))


async def _disks(folder: Path, seed: int) -> Tried:
    """Fill a disk in the middle of operations, and empty it."""
    random = Random(f"proof-{seed}")
    key = random.choice((None, b"a key"))
    with pretending_disk(folder / "disk") as disk:
        path = disk.folder / "a.pelton"
        async with disk.open(path, key=key) as jet:
            filler = test_full_disks.Filler(disk, Bench(jet, random, size=6000, ttl=1))
            await filler.bench.make()
            for _ in range(_FILLINGS):
                await filler.filling()
            filler.problems += await contradictions(filler.bench, filler.attempts)
            filler.problems += await undelivered(filler.bench)
        filler.problems += pelton.verify(path, key)
    return Tried(faults={"disk": _FILLINGS}, operations=len(filler.attempts), violations=filler.problems)


async def _cancelled(folder: Path, seed: int) -> Tried:
    """Cancel operations of every kind at any moment."""
    path = folder / "a.pelton"
    async with pelton.open("memory:" if seed % 2 else path) as jet:
        bench = Bench(jet, Random(f"proof-{seed}"))
        await bench.make()
        await test_cancellation.warm_up(bench)
        before = await test_cancellation.remains(bench)
        canceller = test_cancellation.Canceller(bench)
        await asyncio.gather(*(canceller.lane(_OPERATIONS // _LANES) for _ in range(_LANES)))
        problems = canceller.problems + await contradictions(bench, canceller.attempts) + await undelivered(bench)
        after = await test_cancellation.settled(bench, before)
        problems += [f"{what}: {before[what]} before, {after[what]} after" for what in after - before]
    if not seed % 2:
        problems += pelton.verify(path)
    cancelled = canceller.counts["cancelled"]
    return Tried(faults={"cancellation": cancelled}, operations=len(canceller.attempts), violations=problems)


async def _networks(folder: Path, seed: int) -> Tried:
    """Cut and silence the network between two stores and a server, and kill server and feeders."""
    edge_path, away_path = str(folder / "edge"), str(folder / "away")
    tried = Counter[str]()
    with nats_server(folder / "nats") as server, ExitStack() as stack:
        async with pelton.open(edge_path) as edge, pelton.open(away_path) as away, network(server.port) as net:
            async with pelton.open(server.url) as hub:
                for jet in (edge, hub, away):
                    await jet.create_stream("log", subjects=["log.*"], allow_direct=True)
            play = feeding.Play(stack, Random(f"proof-{seed}"), edge, folder)
            await play.begin(server, net)
            for _ in range(_CUTS):
                tried["kill" if "killed" in await play.trouble() else "network"] += 1
            violations = [name async for name in _astray(play, away, server.url, edge)]
    return Tried(faults=dict(tried), operations=len(play.published), violations=violations)


async def _astray(play: feeding.Play, away: pelton.Jet, url: str, edge: pelton.Jet) -> Any:
    await feeding.arrived(away, len(play.published))
    async with pelton.open(url) as hub:
        for where, jet in (("edge", edge), ("hub", hub), ("away", away)):
            if await feeding.names_in(jet) != play.published:
                yield f"other messages, or in another order, in the stream at the {where}"


async def _histories(folder: Path, seed: int) -> Tried:
    """Let clients share a bucket, some of which are killed; each history is linearizable."""
    address, killed, operations, violations = str(folder / "a.pelton"), 0, 0, list[str]()
    async with pelton.open(address) as jet:
        await jet.create_bucket(BUCKET, history=3)
    async with Histories(address, seed) as rounds, aclosing(rounds.play()) as playing:
        for _ in range(_HISTORIES):
            history = await anext(playing)
            violations += check_history(history)
            operations += len(history)
        killed = rounds.kills
    return Tried(faults={"kill": killed}, operations=operations, violations=violations)


async def _programs(folder: Path, seed: int) -> Tried:
    """Play random programs on the engine and on nats-server; both do the same."""
    return await asyncio.to_thread(_compared, folder, seed)


def _compared(folder: Path, seed: int) -> Tried:
    with stage(folder) as ready:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=_PROGRAMS, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(program=programs(), watched=st.booleans())
        def play(program: list[Step], watched: bool) -> None:
            ready.play(program, watched=watched)

        play()
        return Tried(programs=ready.pair.programs, operations=ready.pair.steps)


async def _inputs(folder: Path, seed: int) -> Tried:
    """Send odd inputs to both servers; both answer alike."""

    def play() -> Tried:
        with running_pair(folder) as pair:
            fuzzing = Fuzzing(pair)
            fuzzing.play_many(_INPUTS, seed, list(PLAYS))
        return Tried(inputs=fuzzing.inputs.total(), violations=fuzzing.found)

    return await asyncio.to_thread(play)


async def _locks(folder: Path, seed: int) -> Tried:
    """Simulate clients that use locks while messages are lost, clients are paused, and clocks stepped."""
    for number in range(_SIMULATED // 5):
        await Troubled(seed * _SIMULATED + number).play()
    return Tried(programs=_SIMULATED // 5)


async def _elections(folder: Path, seed: int) -> Tried:
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
    return Tried(programs=_SIMULATED, violations=violations)


async def _keys(folder: Path, seed: int) -> Tried:
    """Simulate workers of an exclusive queue: one job of a key at a time, in order, each in effect once."""
    violations = list[str]()
    for number in range(_SIMULATED // 5):
        violations += await shop(seed * _SIMULATED + number).run(20, 30.0)
    return Tried(programs=_SIMULATED // 5, violations=violations)


class Round(NamedTuple):
    """A kind of round: what it plays; and in which count it is to reach how much in eight hours."""

    play: Play
    asked: int
    of: str


ROUNDS: Final[dict[str, Round]] = {
    "kills": Round(faults.kills, 10_000, "kill"),
    "storm": Round(_storm, 1_000, "clock"),
    "power": Round(_power, 10_000, "power"),
    "disks": Round(_disks, 2_000, "disk"),
    "cancelled": Round(_cancelled, 100_000, "cancellation"),
    "networks": Round(_networks, 1_000, "network"),
    "rekeys": Round(faults.rekeys, 500, "rekey"),
    "migrations": Round(faults.migrations, 500 * (inherited.VERSIONS[-1] - 1), "migration"),
    "histories": Round(_histories, 500, ""),
    "programs": Round(_programs, 100_000, "programs"),
    "inputs": Round(_inputs, 10_000_000, "inputs"),
    "locks": Round(_locks, 1_000, ""),
    "elections": Round(_elections, 2_000, ""),
    "keys": Round(_keys, 500, ""),
}


async def played(kind: str, number: int, seed: int, folder: Path) -> Tried:
    """Play one round; what it raises is a violation as well."""
    try:
        return await ROUNDS[kind].play(folder, seed * 1_000_000 + number)
    except Exception as error:
        return Tried(violations=[f"{type(error).__name__}: {error}"])
