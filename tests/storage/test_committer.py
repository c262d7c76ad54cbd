"""The committer alone: whatever fails at any point, each unit of work gets exactly one, correct, result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import apsw
import pytest

from pelton.storage.committer import Committer, SyncMode, Work
from pelton.storage.database import Database
from pelton.storage.faults import Fault
from pelton.storage.wal import Medium
from tests.kit.faults import FaultySync

Point = Literal["began", "run", "flush", "commit", "committed"]
POINTS: tuple[Point, ...] = ("began", "run", "flush", "commit")
FEW, MANY = 3, 40  # a group that is synced on the loop's own thread, and one that is synced on another
_TABLES = (
    "CREATE TABLE parents(id INTEGER PRIMARY KEY)",
    # A row without its parent is refused by the COMMIT, not before.
    "CREATE TABLE rows(n INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
)


class UnexpectedError(Exception):
    """An error that no unit of work expects."""


class Observer:
    """A participant that records its calls, and fails at the requested points, as often as requested."""

    def __init__(self, fails: Point | None = None, times: int = 0) -> None:
        self.told: list[str] = []
        self._fails, self._times = fails, times

    def began(self) -> None:
        self._note("began")

    def flush(self) -> None:
        self._note("flush")

    def take_effects(self) -> None:
        self._note("committed")

    def roll_back(self) -> None:
        self._note("rolled back")

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what == self._fails and self._times:
            self._times -= 1
            raise UnexpectedError(what)


class Insert:
    """A row to insert; ``fails`` names the point at which it makes its transaction fail."""

    def __init__(self, database: Database, n: int, *, durable: bool = True, fails: Point | None = None) -> None:
        self._db, self._n, self._fails = database, n, fails
        self.durable, self.size = durable, 1
        self.answers: list[Exception | None] = []

    def run(self) -> None:
        if self._fails == "run":
            raise UnexpectedError("run")
        parent = 1 if self._fails == "commit" else None
        self._db.execute("INSERT INTO rows VALUES(?, ?)", (self._n, parent))

    def finish(self) -> None:
        self.answers.append(None)

    def fail(self, error: Exception) -> None:
        self.answers.append(error)

    def pieces(self) -> list[Work]:
        return [self]

    @property
    def is_finished(self) -> bool:
        return self.answers == [None]


@contextmanager
def committer(
    path: Path,
    observer: Observer,
    disk: FaultySync | None = None,
    mode: SyncMode = "commit",
    busy_timeout: float = 5,
    publish: Callable[[object], None] = lambda effects: None,
) -> Iterator[tuple[Committer, Database]]:
    database = Database(str(path), medium=Medium(sync=disk or FaultySync()))
    for sql in ("PRAGMA foreign_keys=ON", *_TABLES):
        database.execute(sql)
    runs = Committer(
        database,
        observer,
        mode=mode,
        interval=60,
        busy_timeout=busy_timeout,
        publish=publish,
        undone=lambda: None,
    )
    try:
        yield runs, database
    finally:
        runs.close()
        database.close()


def rows(database: Database) -> set[int]:
    return {n for (n,) in database.execute("SELECT n FROM rows")}


async def all_answered(runs: Committer, works: list[Insert]) -> None:
    await asyncio.wait_for(runs.quiesce(), 60)
    assert [len(work.answers) for work in works] == [1] * len(works)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pelton"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("count", [1, FEW, MANY])
async def test_a_group_shares_a_transaction(path: Path, count: int, durable: bool) -> None:
    observer, disk = Observer(), FaultySync()
    with committer(path, observer, disk) as (runs, database):
        works = [Insert(database, n, durable=durable) for n in range(count)]
        for work in works:
            runs.stage(work)
        assert observer.told == []
        await all_answered(runs, works)
        assert observer.told == ["began", "flush", "committed"]
        assert all(work.is_finished for work in works)
        assert rows(database) == set(range(count))
        assert disk.calls == durable


async def test_work_that_ran_at_once_does_not_wait_with_what_its_commit_has_staged(path: Path) -> None:
    later = list[Insert]()

    def stage(effects: object) -> None:
        if not later:
            later.append(Insert(database, 1))
            runs.stage(later[0])

    with committer(path, Observer(), publish=stage) as (runs, database):
        work = Insert(database, 0)
        assert runs.run_now(work)
        assert work.is_finished
        await all_answered(runs, [work, *later])
        assert rows(database) == {0, 1}


@pytest.mark.parametrize("seconds", [0, 60])
async def test_a_task_runs_several_at_once_for_a_moment_while_those_of_others_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr("pelton.storage.committer._ALONE_S", seconds)

    async def run(works: list[Insert]) -> list[bool]:
        return [runs.run_now(work) for work in works]

    with committer(path, Observer(), mode="off") as (runs, database):
        works = [Insert(database, number) for number in range(4)]
        asked = await asyncio.gather(run(works[:2]), run(works[2:3]), run(works[3:]))
        assert asked == [[True, bool(seconds)], [False], [False]]
        await all_answered(runs, works)
        assert rows(database) == {0, 1, 2, 3}


@pytest.mark.parametrize("count", [1, FEW, MANY])
@pytest.mark.parametrize("point", ["run", "commit"])
async def test_work_that_fails_takes_no_neighbour_down(path: Path, point: Point, count: int) -> None:
    observer = Observer()
    with committer(path, observer) as (runs, database):
        works = [Insert(database, n, fails=point if n == count // 2 else None) for n in range(count)]
        for work in works:
            runs.stage(work)
        await all_answered(runs, works)
        failed = works.pop(count // 2)
        kind = UnexpectedError if point == "run" else Fault
        assert isinstance(failed.answers[0], kind)
        assert all(work.is_finished for work in works)
        assert rows(database) == set(range(count)) - {count // 2}
        assert not database.connection.in_transaction
        # The next one is unaffected.
        runs.stage(after := Insert(database, count))
        await all_answered(runs, [after])
        assert after.is_finished


@pytest.mark.parametrize("count", [1, FEW, MANY])
@pytest.mark.parametrize("point", ["began", "flush"])
async def test_where_the_group_fails_once_each_runs_again_alone(path: Path, point: Point, count: int) -> None:
    observer = Observer(fails=point, times=1)
    with committer(path, observer) as (runs, database):
        works = [Insert(database, n) for n in range(count)]
        for work in works:
            runs.stage(work)
        await all_answered(runs, works)
        stored = {n for n in range(count) if works[n].is_finished}
        assert rows(database) == stored
        # A single one is not run again: it was alone when it failed.
        assert len(stored) == (0 if count == 1 else count)
        assert observer.told[: observer.told.index("rolled back") + 1] == [
            "began",
            *["flush"] * (point == "flush"),
            "rolled back",
        ]
        assert observer.told.count("committed") == len(stored)


@pytest.mark.parametrize("point", ["began", "flush"])
async def test_where_everything_fails_everybody_is_told_and_nothing_is_stored(path: Path, point: Point) -> None:
    observer = Observer(fails=point, times=1000)
    with committer(path, observer) as (runs, database):
        works = [Insert(database, n) for n in range(FEW)]
        for work in works:
            runs.stage(work)
        await all_answered(runs, works)
        assert all(isinstance(work.answers[0], UnexpectedError) for work in works)
        assert rows(database) == set()
        assert observer.told.count("rolled back") == observer.told.count("began") == 1 + FEW


@pytest.mark.parametrize("times", [1, 2])
async def test_one_that_runs_at_once_fails_as_one_that_waits_does(path: Path, times: int) -> None:
    observer = Observer(fails="flush", times=times)
    with committer(path, observer) as (runs, database):
        first, second = Insert(database, 1), Insert(database, 2, durable=False)
        assert runs.run_now(first)
        assert runs.run_now(second)
        await all_answered(runs, [first, second])
        assert isinstance(first.answers[0], UnexpectedError)
        assert second.is_finished == (times == 1)


@pytest.mark.parametrize("mode", ["commit", "off"])
@pytest.mark.parametrize("count", [1, FEW, MANY])
async def test_an_answer_that_raises_keeps_nobody_from_theirs(path: Path, count: int, mode: SyncMode) -> None:
    class Unanswered(Insert):
        def finish(self) -> None:
            super().finish()
            raise UnexpectedError("finish")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    with committer(path, Observer(), mode=mode) as (runs, database):
        works: list[Insert] = [Unanswered(database, 0), *(Insert(database, n) for n in range(1, count))]
        for work in works:
            runs.stage(work)
        await all_answered(runs, works)
        runs.stage(after := Insert(database, count))
        await all_answered(runs, [after])
        assert all(work.is_finished for work in [*works, after])
        assert [type(error) for error in told] == [UnexpectedError]


async def test_where_what_follows_a_commit_fails_the_store_ends_and_everybody_is_told(path: Path) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    with committer(path, Observer(fails="committed", times=1)) as (runs, database):
        works = [Insert(database, n) for n in range(FEW)]
        for work in works:
            runs.stage(work)
        await all_answered(runs, works)
        assert [work.answers[0].kind for work in works if isinstance(work.answers[0], Fault)] == ["failed"] * FEW
        with pytest.raises(Fault, match="open the store again"):
            runs.stage(Insert(database, FEW))
        assert [type(error) for error in told] == [UnexpectedError]


async def test_an_interruption_leaves_no_transaction_open_and_answers_everybody(path: Path) -> None:
    class Interrupted(Insert):
        def run(self) -> None:
            raise KeyboardInterrupt

    observer = Observer()
    with committer(path, observer) as (runs, database):
        before, after = Insert(database, 1), Interrupted(database, 2)
        runs.stage(before)
        runs.staged.append(after)
        with pytest.raises(KeyboardInterrupt):
            runs._drain()
        for work in (before, after):
            assert isinstance(work.answers[0], Fault)
        assert observer.told == ["began", "rolled back"]
        assert not database.connection.in_transaction
        assert rows(database) == set()


async def test_while_another_process_writes_work_waits_and_then_fails_as_busy(path: Path) -> None:
    observer = Observer()
    with committer(path, observer, busy_timeout=0.05) as (runs, database):
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        works = [Insert(database, n) for n in range(FEW)]
        for work in works:
            runs.stage(work)
        await all_answered(runs, works)
        assert [work.answers[0].kind for work in works if isinstance(work.answers[0], Fault)] == ["busy"] * FEW
        assert observer.told == ["rolled back"]
        runs.stage(late := Insert(database, 9))
        await asyncio.sleep(0)
        assert late.answers == []
        other.execute("ROLLBACK")
        other.close()
        runs.woken()
        await all_answered(runs, [late])
        assert rows(database) == {9}


@pytest.mark.parametrize("count", [1, FEW, MANY])
async def test_after_a_sync_that_failed_nothing_is_acknowledged(path: Path, count: int) -> None:
    observer, disk = Observer(), FaultySync()
    with committer(path, observer, disk) as (runs, database):
        disk.broken = True
        works = [Insert(database, n) for n in range(count)]
        quick = Insert(database, count, durable=False)
        for work in (*works, quick):
            runs.stage(work)
        await all_answered(runs, [*works, quick])
        assert [work.answers[0].kind for work in works if isinstance(work.answers[0], Fault)] == ["failed"] * count
        # It needed no sync, and may be delivered again.
        assert quick.is_finished
        disk.broken = False
        with pytest.raises(Fault, match="failed"):
            runs.stage(Insert(database, 1000))


async def test_what_is_committed_while_a_sync_runs_fails_with_it(path: Path) -> None:
    observer, disk = Observer(), FaultySync()
    with committer(path, observer, disk) as (runs, database):
        disk.gate.clear()
        works = [Insert(database, n) for n in range(MANY)]
        for work in works:
            runs.stage(work)
        while disk.calls == 0:
            await asyncio.sleep(0)
        meanwhile = [Insert(database, n, durable=n % 2 == 0) for n in range(MANY, 2 * MANY)]
        for work in meanwhile:
            runs.stage(work)
        bad = Insert(database, 2 * MANY, fails="run")
        runs.stage(bad)
        while observer.told.count("committed") < 1 + len(meanwhile):
            await asyncio.sleep(0)
        # Committed, but not on disk: only work that needs no sync gets its result.
        assert all(work.answers == [] for work in works)
        assert [work.is_finished for work in meanwhile] == [not work.durable for work in meanwhile]
        disk.broken = True
        disk.gate.set()
        await all_answered(runs, [*works, *meanwhile, bad])
        unsynced = [*works, *(work for work in meanwhile if work.durable)]
        assert [work.answers[0].kind for work in unsynced if isinstance(work.answers[0], Fault)] == ["failed"] * len(
            unsynced
        )
        assert isinstance(bad.answers[0], UnexpectedError)


async def test_one_sync_covers_what_was_committed_before_it(path: Path) -> None:
    observer, disk = Observer(), FaultySync()
    with committer(path, observer, disk) as (runs, database):
        disk.gate.clear()
        groups = [[Insert(database, 100 * group + n) for n in range(MANY)] for group in range(4)]
        for number, works in enumerate(groups):
            for work in works:
                runs.stage(work)
            while observer.told.count("committed") < number + 1 or disk.calls == 0:
                await asyncio.sleep(0)
        assert disk.calls == 1
        disk.gate.set()
        works = [work for group in groups for work in group]
        await all_answered(runs, works)
        assert all(work.is_finished for work in works)
        assert disk.calls == 2


async def test_what_is_held_runs_when_it_is_let_go_and_shares_its_sync(path: Path) -> None:
    observer, disk = Observer(), FaultySync()
    with committer(path, observer, disk) as (runs, database):
        runs.hold()
        works = [Insert(database, n) for n in range(FEW)]
        for work in works:
            runs.stage(work)
        await asyncio.sleep(0)
        assert observer.told == []
        apart = Insert(database, 99)
        runs.let_go(apart)
        await all_answered(runs, [*works, apart])
        assert apart.is_finished
        assert rows(database) == set(range(FEW))
        assert disk.calls == 1
