"""Power loss at any moment: acknowledged data is stored, the store opens, and its checksums match its rows.

Random programs run on a disk that records them; from each, images are made of what a power loss may have left. A few
dozen in `make test`, a thousand in `make power`; `make power ARGS="--power-seed N"` uses another seed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from pelton.api import ApiError, StoreError
from pelton.connect import Jet
from pelton.engine.salvage import recount
from pelton.storage import Database, Fault
from pelton.streams import subject_rows
from tests.crash.failures import database, fold, killed
from tests.kit.power import PowerMark, RecordingDisk, write_image
from tests.storage.processes import Child
from tests.storage.stores import open_engine

_STEPS = 30
_WRITERS = 4
_EACH = 25
_RECORDINGS = 4
_LOG, _WORK = 1, 2


class Program:
    """Random work on one store; records its requests before, and the replies after."""

    def __init__(self, disk: RecordingDisk, path: Path, random: Random, *, syncs: bool = True) -> None:
        self.disk, self.path, self.random = disk, path, random
        self.sync_file = disk.sync_file if syncs else lambda descriptor: None
        self.key: bytes | None = random.choice((None, b"key 0"))

    async def run(self) -> None:
        await self.make()
        await self.go_on(_STEPS)

    async def make(self) -> None:
        self.disk.mark(("told", "key", self.key))
        self.jet = self.open()
        await self.jet.create_stream("log", subjects=["log.*"])
        work = await self.jet.create_stream("work", subjects=["work.*"], retention="workqueue")
        self.worker = await work.create_consumer(durable_name="worker", max_ack_pending=500)
        self.disk.mark(("told", "made"))

    async def go_on(self, steps: int) -> None:
        for _ in range(steps):
            await self.random.choice((*[self.publish] * 4, self.many, self.batch, self.work, self.work, *self.rare()))()
        if self.random.random() < 0.5:
            await self.jet.close()
            self.disk.mark(("told", "closed"))

    def rare(self) -> tuple[Any, ...]:
        return self.delete, self.checkpoint, self.reopen, self.rekey, self.trouble

    def open(self) -> Jet:
        disk = self.disk
        return open_engine(self.path, vfs=disk.vfs, sync_file=self.sync_file, write_file=disk.write_file, key=self.key)

    def message(self) -> tuple[str, bytes]:
        data = self.random.randbytes(self.random.choice((3, 40, 700, 9000)))
        return f"{self.random.choice(('log', 'work'))}.{self.random.randrange(5)}", data

    async def publish(self) -> None:
        subject, data = self.message()
        self.stored((subject, data), (await self.jet.publish(subject, data)).seq)

    async def many(self) -> None:
        messages = [self.message() for _ in range(20)]
        acks = await asyncio.gather(*[self.jet.publish(*message) for message in messages])
        for message, ack in zip(messages, acks, strict=True):
            self.stored(message, ack.seq)

    async def batch(self) -> None:
        messages = [self.message() for _ in range(self.random.choice((5, 60)))]
        for message, ack in zip(messages, await self.jet.publish_batch(messages), strict=True):
            self.stored(message, ack.seq)

    def stored(self, message: tuple[str, bytes], seq: int) -> None:
        self.disk.mark(("told", "stored", _LOG if message[0].startswith("log") else _WORK, seq, message[1]))

    async def work(self) -> None:
        for message in await self.worker.fetch(7, timeout=0):
            name = (_WORK, message.metadata.stream_seq)
            self.disk.mark(("asked", "removed", *name))
            await message.ack()
            self.disk.mark(("told", "removed", *name))

    async def delete(self) -> None:
        log = await self.jet.stream("log")
        state = (await log.info()).state
        if state.messages:
            self.disk.mark(("asked", "removed", _LOG, state.first_seq))
            # Another process may have deleted it by now.
            with suppress(ApiError):
                await log.delete_message(state.first_seq)
                self.disk.mark(("told", "removed", _LOG, state.first_seq))

    async def checkpoint(self) -> None:
        fold(self.jet, self.random.choice(("PASSIVE", "TRUNCATE")))

    async def reopen(self) -> None:
        await self.jet.close()
        self.jet = self.open()
        self.worker = await (await self.jet.stream("work")).consumer("worker")

    async def trouble(self) -> None:
        """Let syncs fail, with the store open elsewhere or not, followed by a kill or not; then open it again."""
        random, old = self.random, self.jet
        other = self.open() if random.random() < 0.5 else None
        ending, evicts = random.choice(("-wal", "-wal", ".pelton")), random.random() < 0.3
        self.disk.fail(ending, random, times=random.choice((1, 1, 2, 6)), evicts=evicts)
        for jet in (old, other, old):
            # Reads of pages that the kernel has dropped may return anything.
            with suppress(Exception if evicts else StoreError):
                self.jet = jet or old
                for _ in range(random.randrange(3)):
                    await random.choice((self.publish, self.many, self.batch, self.checkpoint))()
        if random.random() < 0.3:
            self.path = killed(self.disk, self.path, self.path.parent / f"killed-{len(self.disk.events)}")
            await old.close()
        elif random.random() < 0.8:
            await old.close()
        self.jet = await self.opened_again([old, *([other] if other else [])])
        self.worker = await (await self.jet.stream("work")).consumer("worker")
        check_rows(database(self.jet), Expected(self.disk, len(self.disk.events)))

    async def opened_again(self, others: list[Jet]) -> Jet:
        """Do what the errors require: open again, close it everywhere, repair the disk."""
        for attempt in range(6):
            try:
                jet = self.open()
            except StoreError:
                if attempt == 2:
                    for other in others:
                        await other.close()
                if attempt == 4:
                    self.disk.heal()
            else:
                for other in others:
                    await other.close()
                self.disk.heal()
                return jet
        raise AssertionError("it cannot be opened any more")

    async def rekey(self) -> None:
        if self.key is None:
            return
        new = b"key %d" % self.random.randrange(1000)
        self.disk.mark(("asked", "key", new))
        await self.jet.rekey(new)
        self.key = new
        self.disk.mark(("told", "key", new))


class SharingProgram(Program):
    """Random work of one of several processes on a store."""

    def rare(self) -> tuple[Any, ...]:
        return self.delete, self.checkpoint, self.reopen


async def writer(pipe: Connection, path: Path, events: Path, seed: str, key: bytes | None, syncs: bool) -> None:
    """Run a program beside others, from when all have opened the store."""
    disk = RecordingDisk("writer", events)
    program = SharingProgram(disk, path, Random(seed), syncs=syncs)
    program.key = key
    program.jet = program.open()
    program.worker = await (await program.jet.stream("work")).consumer("worker")
    pipe.send("open")
    pipe.recv()
    await program.go_on(_STEPS)
    await program.jet.close()
    disk.close()


async def recorded(folder: Path, random: Random, liars: int = 0) -> RecordingDisk:
    """Return the disk after programs of four processes, some of which pretend to sync."""
    disk = RecordingDisk(f"shared-{folder}", folder / "events")
    (folder / "live").mkdir()
    program = SharingProgram(disk, folder / "live" / "a.pelton", random)
    await program.make()
    await program.jet.close()
    with ExitStack() as stack:
        children = []
        for number in range(_WRITERS):
            about = (program.path, folder / "events", str(random.random()), program.key, number >= liars)
            children.append(stack.enter_context(Child(writer, *about)))
        for child in children:
            assert child.hear() == "open"
        for child in children:
            child.say("go")
        for child in children:
            assert child.hear_all() == []
            child.join()
    disk.collect()
    return disk


class Expected:
    """What must hold after the events up to a moment."""

    def __init__(self, disk: RecordingDisk, moment: int) -> None:
        self.present: dict[tuple[int, int], bytes] = {}
        self.absent: set[tuple[int, int]] = set()
        # A message may be removed by one process before the other that published it has reported it.
        self.doomed: set[tuple[int, int]] = set()
        self.keys: list[bytes | None] = []
        self.made = False
        for event in disk.events[:moment]:
            if isinstance(event, PowerMark):
                self._take(*event.what)

    def _take(self, verb: str, what: str, *facts: Any) -> None:
        if what == "key":
            self.keys = [facts[0]] if verb == "told" else [*self.keys, facts[0]]
        elif what == "made":
            self.made = True
        elif what == "stored":
            if facts[:2] not in self.doomed:
                self.present[facts[:2]] = facts[2]
        elif what == "removed":
            self.present.pop(facts, None)
            self.doomed.add(facts)
            if verb == "told":
                self.absent.add(facts)


def the_key(path: Path, expected: Expected) -> bytes | None:
    """Return the key that opens the store: while the key is exchanged it may be either."""
    for key in expected.keys:
        try:
            Database(str(path), key=key).close()
        except Fault as fault:
            if fault.kind != "key":
                raise
        else:
            return key
    raise AssertionError("no key opens the store")


async def check(path: Path, expected: Expected) -> None:
    key = the_key(path, expected)
    assert recount(str(path), key) == []
    if not expected.made:
        return
    database = Database(str(path), key=key)
    check_rows(database, expected)
    database.close()
    async with open_engine(path, key=key, sync_file=lambda descriptor: None) as jet:
        await jet.publish("log.1", b"life goes on")


def check_rows(database: Database, expected: Expected) -> None:
    rows = {
        (stream, seq): data
        for stream in (_LOG, _WORK)
        for seq, data in database.execute(f"SELECT seq, data FROM m_{stream}")
    }
    for name, data in expected.present.items():
        assert rows.get(name) == data, f"{name} was acknowledged"
    assert not rows.keys() & expected.absent, "a removal was acknowledged"


def moments(disk: RecordingDisk, random: Random) -> Iterator[int]:
    for _ in range(_EACH):
        yield random.randrange(1, len(disk.events) + 1)


async def check_images(disk: RecordingDisk, folder: Path, random: Random) -> None:
    for number, moment in enumerate(moments(disk, random)):
        image = folder / f"image-{number}"
        image.mkdir()
        write_image(image, disk.image(moment, random))
        await check(image / "a.pelton", Expected(disk, moment))


@pytest.fixture(autouse=True)
def _subjects_are_counted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are short: power is also lost while subjects are counted."""
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", 9)
    monkeypatch.setattr(subject_rows, "FEW_SUBJECTS", 2)


async def test_power_is_lost_at_any_moment(tmp_path: Path, images: int, power_seed: int) -> None:
    for number in range(max(images // _EACH, 1)):
        random = Random(f"{power_seed}-{number}")
        disk = RecordingDisk(f"recorder-{number}")
        (live := tmp_path / f"live-{number}").mkdir()
        program = Program(disk, live / "a.pelton", random)
        try:
            await program.run()
            await check_images(disk, tmp_path, random)
        except AssertionError as error:
            raise AssertionError(f"seed {power_seed}, program {number}: {error}") from error
        finally:
            await program.jet.close()
            disk.close()
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)


async def test_power_is_lost_while_four_processes_write(tmp_path: Path, images: int, power_seed: int) -> None:
    for number in range(max(images // (2 * _EACH), 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        random = Random(f"{power_seed}-{number}")
        disk = await recorded(folder, random)
        try:
            await check_images(disk, folder, random)
        finally:
            disk.close()
        shutil.rmtree(folder)


async def test_a_log_that_is_not_synced_is_found_out(tmp_path: Path) -> None:
    random = Random(1)
    disk = RecordingDisk("recorder-of-a-liar")
    program = Program(disk, tmp_path / "a.pelton", random, syncs=False)
    try:
        await program.run()
        assert await is_found_out(disk, tmp_path, random)
    finally:
        await program.jet.close()
        disk.close()


async def test_a_log_that_one_of_four_processes_does_not_sync_is_found_out(tmp_path: Path) -> None:
    random = Random(1)
    # The syncs of the others may cover for it: that is up to the machine, and does not happen again and again.
    for number in range(_RECORDINGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = await recorded(folder, random, liars=1)
        try:
            found = await is_found_out(disk, folder, random)
        finally:
            disk.close()
        if found:
            return
    raise AssertionError("a process that does not sync was never found out")


async def is_found_out(disk: RecordingDisk, folder: Path, random: Random) -> bool:
    try:
        await check_images(disk, folder, random)
    except (AssertionError, apsw.SQLError):
        return True
    return False


@pytest.fixture
def images(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--images"))


@pytest.fixture
def power_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--power-seed"))
