"""Whose turn it is among the priorities: the highest, with bounded bypass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.queue.model.turns import BYPASS, RankTurn, RankTurns

RANKED = ("rank3", "rank2", "rank1")
ALL = (*RANKED, "rest")


class World:
    """Waiting jobs by channel, taken by turns; ``taken`` lists the channels of the jobs that were taken."""

    def __init__(self, plain: Sequence[str] = ("rest",)) -> None:
        self.turns = RankTurns(RANKED, plain)
        self.turns.note_ranked(True, 0.0)
        self.jobs = dict.fromkeys((*RANKED, *plain), 0)
        self.taken: list[str] = []
        self.now = 0.0
        # How long an answer takes.
        self.lag = 0.0

    def take(self, wanted: int, asks: str = "rest") -> int:
        turn = self.turns.next(asks, wanted, self.now)
        assert 1 <= turn.most <= wanted
        found = min(turn.most, self.jobs[turn.channel])
        self.jobs[turn.channel] -= found
        self.taken += [turn.channel] * found
        self.now += self.lag
        self.turns.note_answer(turn.channel, found, self.now, is_below=turn.is_below)
        return found


def test_the_highest_priority_comes_first() -> None:
    world = World()
    world.jobs |= {"rank3": 3, "rank1": 2, "rest": 1}
    for _ in range(12):
        world.take(1)
    assert world.taken == ["rank3"] * 3 + ["rank1"] * 2 + ["rest"]


def test_one_of_eight_comes_from_below_where_channels_take_turns() -> None:
    world = World()
    world.jobs = dict.fromkeys(ALL, 100)
    for _ in range(32):
        world.take(1)
    below = [world.taken[n] for n in range(BYPASS - 1, 32, BYPASS)]
    assert sorted(below[:3]) == ["rank1", "rank2", "rest"]
    assert below[3] == below[0]
    assert world.taken.count("rank3") == 28


@pytest.mark.parametrize("max_jobs", [1, 4])
def test_workers_that_soon_end_serve_every_priority(max_jobs: int) -> None:
    chance, taken = Random(1), Counter[str]()
    for _ in range(480 // max_jobs):
        world = World()
        world.turns.draw(chance)
        world.jobs = dict.fromkeys(ALL, 100)
        for _ in range(max_jobs):
            world.take(1)
        taken.update(world.taken)
    # As of one worker that takes them all: 420 of the highest, and 20 of each of the others.
    assert taken["rank3"] >= 380
    assert all(taken[channel] >= 10 for channel in ALL)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.lists(st.tuples(st.sampled_from(ALL), st.integers(1, 30)), max_size=60), st.data())
def test_no_priority_waits_for_ever(concurrency: int, arrivals: list[tuple[str, int]], data: st.DataObject) -> None:
    world = World()
    world.jobs = dict.fromkeys(ALL, 10_000)
    for channel, count in arrivals:
        world.jobs[channel] += count
        world.take(data.draw(st.integers(1, concurrency)))
    # Jobs that come together are taken together, which adds to what may pass.
    most = (len(ALL) - 1) * BYPASS + len(ALL) * concurrency
    for _ in range(100):
        world.take(data.draw(st.integers(1, concurrency)))
    for channel in ALL:
        since = 0
        for taken in world.taken:
            since = 0 if taken == channel else since + 1
            assert since <= most, channel


def test_a_channel_without_jobs_does_not_use_up_the_turns_of_another() -> None:
    world = World(("keyed", "rest"))
    world.jobs |= {"rank3": 1000, "rest": 1000}
    while len(world.taken) < 240:
        world.now += 0.03
        # Whenever a job may come from below, it is the one that asks.
        world.take(8, asks="keyed")
        world.take(8, asks="rest")
    assert world.taken.count("rest") >= 240 // BYPASS - 2


def test_a_channel_that_had_nothing_is_left_out_for_a_moment() -> None:
    world = World()
    world.jobs["rest"] = 10
    assert [world.take(1) for _ in range(4)] == [0, 0, 0, 1]
    world.jobs["rank3"] = 1
    assert world.turns.next("rest", 4, 0.01).channel == "rest"
    assert world.turns.next("rest", 4, 0.03).channel == "rank3"


def test_turns_are_kept_even_if_answers_take_long() -> None:
    world = World()
    world.lag = 0.015
    world.jobs |= {"rank2": 1000, "rest": 1000}
    while len(world.taken) < 240:
        world.take(8)
    assert world.taken.count("rest") >= 240 // BYPASS - 2


def test_without_priorities_nothing_else_is_asked() -> None:
    turns = RankTurns(RANKED, ("rest",))
    assert turns.is_unsure(0.0)
    turns.note_ranked(False, 0.0)
    assert not turns.is_unsure(0.4)
    assert turns.next("rest", 4, 0.4) == RankTurn("rest", 4, waits=True)
    assert turns.is_unsure(0.6)
    for channel in RANKED:
        turns.awaits(channel)
    assert not turns.is_unsure(0.6), "pulls wait for them"
    assert turns.next("rest", 4, 0.6) == RankTurn("rest", 4, waits=True)
    turns.note_answer("rank2", 1, 0.7)
    assert turns.next("rest", 1, 0.7) == RankTurn("rank2", 1)
