"""The claims of a consumer with a limit per subject, against lists in memory."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from pelton.consumers.claims import ClaimTable
from pelton.storage import Database

SUBJECTS = [f"jobs.{name}" for name in ("a", "b", 'c"\\', "d%2E", "é")]


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database("claims", memory=True)
    yield database
    database.close()


class Lists:
    """For each subject the messages that were met and not settled, oldest first; the first ``limit`` are held."""

    def __init__(self, database: Database, limit: int) -> None:
        self._db = database
        self.table = ClaimTable(database, 7)
        self.table.limit = limit
        self.met: defaultdict[str, list[int]] = defaultdict(list)
        self.ready: set[int] = set()

    def meet(self, subject: str, seq: int) -> None:
        known = self.table.of(subject)
        held = known.held < self.table.limit and not known.has_parked
        if held:
            known.held += 1
        else:
            known.has_parked = True
        self._db.execute("INSERT INTO claims VALUES(7, ?, ?, ?, 0)", (subject, seq, int(held)))
        self.met[subject].append(seq)

    def held(self) -> list[tuple[str, int]]:
        return [(subject, seq) for subject, met in self.met.items() for seq in met[: self.table.limit]]

    def settle(self, settled: list[tuple[str, int]]) -> None:
        before = set(self.held())
        for subject, seq in settled:
            self.met[subject].remove(seq)
        self.table.release(settled)
        self.ready |= {seq for _, seq in set(self.held()) - before}

    def check(self) -> None:
        rows = self._db.execute("SELECT subject, seq FROM claims WHERE consumer=7 AND held=1").fetchall()
        assert set(rows) == set(self.held())
        assert {seq for (seq,) in self._db.execute("SELECT seq FROM ready WHERE consumer=7")} == self.ready
        for subject, met in self.met.items():
            known = self.table.of(subject)
            assert (known.held, known.has_parked) == (min(len(met), self.table.limit), len(met) > self.table.limit)


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_of_each_subject_are_held(database: Database, limit: int, seed: int) -> None:
    draw, lists = random.Random(seed), Lists(database, limit)
    for seq in range(200):
        lists.meet(draw.choice(SUBJECTS), seq)
        if draw.random() < 0.4:
            held = lists.held()
            lists.settle(draw.sample(held, draw.randint(0, len(held))))
        if draw.random() < 0.3:
            # As if another process had written.
            lists.table.forget()
            lists.table.learn(draw.sample(SUBJECTS, 3))
        lists.check()
    lists.table.limit = limit + 2
    lists.table.promote_all()
    rows = database.execute("SELECT subject, seq FROM claims WHERE consumer=7 AND held=1").fetchall()
    assert set(rows) == set(lists.held())


def test_a_settlement_of_many_subjects_takes_few_statements(database: Database) -> None:
    lists, statements = Lists(database, 1), list[str]()
    for seq in range(200):
        lists.meet(f"jobs.{seq % 100}", seq)
    execute, executemany = database.execute, database.executemany
    database.execute = lambda sql, *rest: statements.append(sql) or execute(sql, *rest)  # type: ignore[assignment,func-returns-value]
    database.executemany = lambda sql, *rest: statements.append(sql) or executemany(sql, *rest)  # type: ignore[assignment,func-returns-value]
    lists.settle(lists.held())
    assert len(statements) <= 4
    lists.check()
