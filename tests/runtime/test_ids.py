"""Ids have NUID's shape and do not repeat.

In a row, between threads, across a fork, near the end of the counter.
"""

import os
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from pelton.runtime import Ids


def test_shape() -> None:
    ids = Ids(random.SystemRandom())
    assert re.fullmatch("[0-9A-Za-z]{22}", ids.new())


def test_one_prefix_and_no_repetition() -> None:
    ids = Ids(random.Random(1))
    drawn = [ids.new() for _ in range(10_000)]
    assert len(set(drawn)) == len(drawn)
    assert len({one[:12] for one in drawn}) == 1


def test_equal_seeds_give_equal_ids() -> None:
    assert Ids(random.Random(7)).new() == Ids(random.Random(7)).new() != Ids(random.Random(8)).new()


def test_threads_never_share_an_id() -> None:
    ids = Ids(random.Random(2))
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [ids.new() for _ in range(2_000)], range(8)))
    assert len({one for batch in batches for one in batch}) == 16_000


def test_another_process_draws_a_new_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = Ids(random.Random(3))
    parent = ids.new()
    child_pid = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child_pid)
    assert ids.new()[:12] != parent[:12]


def test_the_counter_wraps_within_its_ten_characters() -> None:
    class AtTheEnd(random.Random):
        def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
            return (start if stop is None else stop) - 1

    ids = Ids(AtTheEnd(0))
    last, wrapped = ids.new(), ids.new()
    assert last[12:] == "z" * 10
    assert len(wrapped) == 22
    assert wrapped[12:] < last[12:]
