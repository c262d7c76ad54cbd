"""The write lock of several connections: each gets its turn. Time is a number that the tests move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pelton.storage.committer import LAPSE_S, PRIORITY_AFTER_S, WriteLock
from pelton.storage.database import Database
from pelton.storage.faults import Fault

PLACES = pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])


@contextmanager
def connections(
    path: Path, memory: bool, count: int, patience: float = 30
) -> Iterator[list[tuple[Database, WriteLock]]]:
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            database = Database(path.name if memory else str(path), memory=memory)
            stack.callback(database.close)
            found.append((database, WriteLock(database, patience)))
        yield found


@PLACES
def test_a_connection_that_never_pauses_lets_another_have_its_turn(tmp_path: Path, memory: bool) -> None:
    with connections(tmp_path / "a.pelton", memory, 2) as [(busy, busys), (other, others)]:
        now, tries = 50.0, 0
        assert busys.begin(now) is None
        # It only ever tries while the lock is held: that is what happens to a thread beside a busy one.
        while (pause := others.begin(now)) is not None:
            tries += 1
            assert tries < 20
            busy.execute("COMMIT")
            now += pause
            if busys.begin(now) is not None:
                assert tries > 1, "nobody has to stand back for one that has not waited"
        assert not busy.in_transaction
        assert busys.begin(now) is not None
        other.execute("COMMIT")
        assert busys.begin(now) is None


@PLACES
def test_all_get_as_many_turns_however_eager_some_are(tmp_path: Path, memory: bool) -> None:
    with connections(tmp_path / "a.pelton", memory, 4) as locks:
        turns, due, now = [0] * 4, [10.0] * 4, 10.0
        holder: int | None = None
        for step in range(4000):
            now = 10 + step * 0.0005
            if holder is not None and step % 4 == 0:
                locks[holder][0].execute("COMMIT")
                # The first two want it again at once, and nobody is ever as quick as they are.
                due[holder], holder = now + (0 if holder < 2 else 0.003), None
            for n, (_, lock) in enumerate(locks):
                if n == holder or due[n] > now:
                    continue
                pause = lock.begin(now)
                if pause is None:
                    holder, turns[n] = n, turns[n] + 1
                else:
                    due[n] = now + pause
        if holder is not None:
            locks[holder][0].execute("COMMIT")
    assert sum(turns) > 700
    assert min(turns) > sum(turns) / 4 / 2


def test_a_stopped_claimant_delays_the_others_by_the_lapse_of_its_claim(tmp_path: Path) -> None:
    with connections(tmp_path / "a.pelton", False, 3) as [(holder, holders), (_, stopped), (_, others)]:
        assert holders.begin(10) is None
        stopped.begin(10)
        assert stopped.begin(10 + 2 * PRIORITY_AFTER_S) is not None
        holder.execute("COMMIT")
        now = 10 + 2 * PRIORITY_AFTER_S
        assert others.begin(now) is not None
        assert others.begin(now + LAPSE_S * 1.1) is None


def test_a_wait_ends_with_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with connections(tmp_path / "a.pelton", False, 3, 0.5) as [(holder, holders), (_, first), (_, second)]:
        assert holders.begin(10) is None
        for lock in (first, second):
            assert lock.begin(10) is not None
            assert lock.begin(10.45) is not None
        for lock in (first, second):
            with pytest.raises(Fault, match=r"write lock for 0\.5 s.*end it, then retry") as caught:
                lock.begin(10.6)
            assert caught.value.kind == "busy"
            assert lock.begin(10.6) is not None, "the next wait is a new one"
        holder.execute("COMMIT")
        assert second.begin(10.61) is None


def test_giving_up_withdraws_the_claim(tmp_path: Path) -> None:
    with connections(tmp_path / "a.pelton", False, 3) as [(holder, holders), (_, first), (_, second)]:
        assert holders.begin(10) is None
        assert first.begin(10) is not None
        assert first.begin(10 + 2 * PRIORITY_AFTER_S) is not None
        holder.execute("COMMIT")
        assert second.begin(10 + 2 * PRIORITY_AFTER_S) is not None
        first.give_up()
        assert second.begin(10 + 2 * PRIORITY_AFTER_S) is None
