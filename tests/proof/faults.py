"""Rounds of faults: processes are killed, stopped and cancelled, power is lost, disks are full, clocks are set."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Final

import pelton
from pelton.storage import SCHEMA_VERSION
from pelton.streams import subject_rows
from tests.crash import test_power as power_losses
from tests.crash.roles import make_store
from tests.crash.test_kill import Record, drain, killing
from tests.kit.linear import check_history
from tests.kit.patches import patched
from tests.kit.power import FailedSync, RecordingDisk
from tests.linear.rounds import Rounds as Histories
from tests.linear.worker import BUCKET
from tests.proof.record import Tried
from tests.storage.processes import Child, preload
from tests.storm import inherited, test_cancellation, test_full_disks
from tests.storm import storm as storms
from tests.storm.disks import pretending_disk
from tests.storm.operations import Bench
from tests.storm.outcome import contradictions, undelivered

# What children run is imported once, and not by each.
preload(__name__)
_TROUBLES: Final = 60
# Of a short storm more clocks jump: and what stands still for longer than a lease takes seconds.
_ACTS: Final = (*["kill"] * 10, *["stop"] * 5, "sleep", *["jump"] * 5, "renew", "verify")
_PROGRAMS: Final = 6
_SHARED_IMAGES: Final = 100
_FILLINGS: Final = 20
_OPERATIONS: Final = 2400
_LANES: Final = 6
_HISTORIES: Final = 20
_KILLINGS: Final = 16
_OLDER: Final = range(1, SCHEMA_VERSION)
_OF_EACH_SCHEMA: Final = 6
_REKEYS: Final = 12
_ROWS: Final = 30


async def kills(folder: Path, seed: int) -> Tried:
    """Kill publishers and workers of one store; what was acknowledged to them is there, once."""
    random, record, path = Random(seed), Record(), folder / "a.pelton"
    await make_store(path, ack_wait=0.3)
    killed = 0
    for number in range(_KILLINGS):
        killed += await killing(path, random, record, number)
    await drain(path, record)
    operations = sum(map(len, record.published.values())) + len(record.done)
    return Tried(faults={"kill": killed}, operations=operations)


def _migrate(pipe: Connection, path: Path) -> None:
    pipe.send("begun")
    with pelton.sync.open(path):
        pipe.send("migrated")


async def migrations(folder: Path, seed: int) -> Tried:
    """Migrate stores of each older schema, killed on the way again and again; nothing of them is lost."""
    random, tried = Random(seed), Tried()
    tried.faults = {"kill": 0, "migration": 0}
    for version in _OLDER:
        for number in range(_OF_EACH_SCHEMA):
            home = folder / f"{version}-{number}"
            home.mkdir()
            path = home / "a.pelton"
            inherited.unpack(version, path)
            for _ in range(random.choice((0, 1, 1, 2))):
                tried.faults["kill"] += _killed(lambda path=path: Child(_migrate, path), random, 0.03)  # type: ignore[misc]  # its default
            async with pelton.open(path) as jet:
                tried.violations += await inherited.left(jet, version)
            tried.violations += [f"schema {version}: {problem}" for problem in pelton.verify(path)]
            tried.faults["migration"] += 1
            shutil.rmtree(home)
    tried.operations = tried.faults["migration"]
    return tried


def _killed(start: Callable[[], Child], random: Random, within_s: float) -> int:
    with start() as child:
        child.hear()
        child.pipe.poll(random.uniform(0, within_s))
        child.kill()
    return 1


def _rekey(pipe: Connection, path: Path, old: str | None, new: str | None) -> None:
    pipe.send("begun")
    pelton.rekey(path, old, new)
    pipe.send("rekeyed")


async def rekeys(folder: Path, seed: int) -> Tried:
    """Exchange the key of a store, encrypt and decrypt it, killed on the way; one of both keys opens it, whole."""
    random, path, key = Random(seed), folder / "a.pelton", "first"
    present: str | None = key
    async with pelton.open(path, key=key) as jet:
        await jet.create_stream("s", subjects=["s"], allow_direct=True)
        for _ in range(_ROWS):
            await jet.publish("s", random.randbytes(random.choice((10, 3000))))
    tried = Tried(faults={"rekey": 0, "kill": 0})
    wanted = await _contents(path, key)
    for number in range(_REKEYS):
        new = random.choice((f"key {number}", f"key {number}", None)) if present else f"key {number}"
        with Child(_rekey, path, present, new) as child:
            child.hear()
            child.pipe.poll(random.uniform(0, 0.08))
            child.kill()
            said = child.hear_all()
        tried.faults["kill"] += 1
        tried.faults["rekey"] += 1
        opened = await _opened(path, [new] if "rekeyed" in said else [new, present])
        if opened is None:
            tried.violations.append(f"no key opens the store after exchange {number}")
            return tried
        present, found = opened
        if found != wanted:
            tried.violations.append(f"other messages after exchange {number}")
        tried.violations += pelton.verify(path, present)
    tried.operations = _REKEYS
    return tried


async def _contents(path: Path, key: str | None) -> list[bytes]:
    async with pelton.open(path, key=key) as jet:
        stream = await jet.stream("s")
        return [(await stream.get_message(seq)).data for seq in range(1, _ROWS + 1)]


async def _opened(path: Path, keys: list[str | None]) -> tuple[str | None, list[bytes]] | None:
    """Return the key that opens the store, and its messages."""
    for key in keys:
        with suppress(pelton.StoreKeyError):
            return key, await _contents(path, key)
    return None


async def storm(folder: Path, seed: int) -> Tried:
    """Kill, stop and mislead processes of every kind on a store of some schema, encrypted or not."""
    begins = (*inherited.VERSIONS, 0)
    version = begins[seed % len(begins)]
    play = storms.Storm(folder, f"proof-{seed}", encrypted=seed // len(begins) % 2 == 0, version=version)
    with patched(storms, _ACTS=_ACTS):
        found = await play.run(_TROUBLES)
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
    with patched(subject_rows, MOST_UNCOUNTED=9, FEW_SUBJECTS=2):
        yield


async def power(folder: Path, seed: int) -> Tried:
    """Lose power at many moments of programs, whose syncs fail now and then; every third round is of four processes."""
    random, tried = Random(f"proof-{seed}"), Tried(faults={"power": 0, "sync": 0})
    with _counted_soon():
        if seed % 3 == 2:
            with patched(power_losses, _EACH=_SHARED_IMAGES):
                await _lose_power(await power_losses.recorded(folder, random), folder, random, tried)
            return tried
        for number in range(_PROGRAMS):
            (home := folder / str(number)).mkdir()
            disk = RecordingDisk(f"recorder-{seed}-{number}")
            (home / "live").mkdir()
            program = power_losses.Program(disk, home / "live" / "a.pelton", random)
            try:
                await program.run()
            finally:
                await program.jet.close()
            await _lose_power(disk, home, random, tried)
            shutil.rmtree(home)
    return tried


async def _lose_power(disk: RecordingDisk, folder: Path, random: Random, tried: Tried) -> None:
    try:
        await power_losses.check_images(disk, folder, random)
    finally:
        disk.close()
    tried.faults["power"] += power_losses._EACH
    tried.faults["sync"] += sum(isinstance(event, FailedSync) for event in disk.events)
    tried.operations += len(disk.events)


async def disks(folder: Path, seed: int) -> Tried:
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


async def cancelled(folder: Path, seed: int) -> Tried:
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


async def histories(folder: Path, seed: int) -> Tried:
    """Let clients share a bucket, some of which are killed; each history is linearizable."""
    address, killed, operations, violations = str(folder / "a.pelton"), 0, 0, list[str]()
    async with pelton.open(address) as jet:
        await jet.create_bucket(BUCKET, history=3)
    async with Histories(address, seed) as rounds, aclosing(rounds.play()) as playing:
        for _ in range(_HISTORIES):
            history = await anext(playing)
            violations += map(str, check_history(history))
            operations += len(history)
        killed = rounds.kills
    return Tried(faults={"kill": killed}, operations=operations, violations=violations)
