"""Short rounds of faults of real processes: killed at work, while a store is migrated, while its key is exchanged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Final

import pelton
from pelton.storage import SCHEMA_VERSION
from tests.crash.roles import make_store
from tests.crash.test_kill import Record, drain, killing
from tests.proof.record import Tried
from tests.storage.processes import Child
from tests.storm import inherited

_KILLINGS: Final = 8
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
