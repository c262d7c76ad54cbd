"""How many jobs a worker asks for."""

from __future__ import annotations

import pytest

from pelton.queue.run.fetch import Appetite


def test_slow_jobs_are_asked_for_by_free_slots_alone() -> None:
    appetite = Appetite(8, 30.0, exclusive=False)
    assert appetite.count_wanted(running=0, waiting=0) == 8
    assert appetite.count_wanted(running=5, waiting=0) == 3
    assert appetite.count_wanted(running=8, waiting=0) == 0


def test_short_jobs_are_asked_for_ahead_but_many_at_a_time() -> None:
    appetite = Appetite(8, 30.0, exclusive=False)
    for _ in range(200):
        appetite.ran(0.001)
    assert appetite.room(running=8, waiting=0) == pytest.approx(8 * 20, abs=1)
    assert appetite.count_wanted(running=8, waiting=100) == 0
    assert appetite.count_wanted(running=8, waiting=79) > 79
    for _ in range(200):
        appetite.ran(0.0)
    assert appetite.room(running=8, waiting=0) == 512


def test_of_an_exclusive_queue_fewer_are_taken_ahead() -> None:
    appetite = Appetite(8, 30.0, exclusive=True)
    for _ in range(400):
        appetite.ran(0.0)
    assert appetite.room(running=8, waiting=0) == 256


def test_a_request_ends_within_a_part_of_the_lease() -> None:
    assert Appetite(8, 3.0, exclusive=False).request(5).expires_ns == 1_000_000_000
    assert Appetite(8, 300.0, exclusive=False).request(5).expires_ns == 10_000_000_000
