"""Which rank is next: bounded bypass, whatever waits."""

from __future__ import annotations

import random

import pytest

from pelton.runtime.rank_bypass import BYPASS, RankBypass


def _served(waiting: dict[int, int], number: int) -> list[int]:
    bypass, found = RankBypass(), list[int]()
    for _ in range(number):
        rank = bypass.next(waiting)
        bypass = RankBypass.of_number(bypass.after(rank, waiting).number)
        found.append(rank)
    return found


def test_one_of_eight_is_of_a_lower_rank_and_these_take_turns() -> None:
    found = _served({3: 9, 2: 9, 1: 9, 0: 9}, 4 * BYPASS)
    assert [rank for rank in found if rank < 3] == [2, 1, 0, 2]
    assert [place for place, rank in enumerate(found, 1) if rank < 3] == [8, 16, 24, 32]


def test_one_rank_alone_has_every_turn() -> None:
    assert _served({1: 9, 0: 0}, 20) == [1] * 20


@pytest.mark.parametrize("seed", range(5))
def test_none_waits_longer_than_its_turn(seed: int) -> None:
    draw, bypass = random.Random(seed), RankBypass()
    ahead = dict.fromkeys(range(4), 0)
    waiting = dict.fromkeys(range(4), 0)
    for _ in range(2_000):
        waiting[draw.randrange(4)] += draw.randrange(3)
        if not any(waiting.values()):
            continue
        rank = bypass.next(waiting)
        bypass = bypass.after(rank, waiting)
        waiting[rank] -= 1
        for other in waiting:
            ahead[other] = ahead[other] + 1 if waiting[other] and other < rank else 0
        assert max(ahead.values()) < 3 * BYPASS
