"""The time of a lease: due and over at its shares, by whichever clock has advanced more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.runtime import LeaseClock, LeaseShares, SystemClock

SHARES = LeaseShares(renew=0.5, stop=0.75, again=0.125, longest_try=0.25)
DURATION = 8.0
WALL = 1_700_000_000_000_000_000


def a_lease(wall: int = 0) -> LeaseClock:
    return LeaseClock(1000.0, DURATION, SHARES, wall)


def test_it_is_due_and_over_at_its_shares() -> None:
    lease = a_lease()
    assert (lease.renew_after, lease.pause) == (4.0, 1.0)
    assert (lease.due_at, lease.over_at) == (1004.0, 1006.0)
    assert [lease.is_due(1000 + age) for age in (0, 3.9, 4.0, 9)] == [False, False, True, True]
    assert [lease.is_over(1000 + age) for age in (0, 5.9, 6.0, 9)] == [False, False, True, True]
    assert [lease.seconds_left(1000 + age) for age in (0, 5, 6, 9)] == [6.0, 1.0, 0.0, 0.0]


def test_it_counts_from_when_its_confirmation_was_asked_for() -> None:
    lease = a_lease(WALL)
    lease.confirm(1004.0, WALL + 4 * 10**9)
    assert (lease.due_at, lease.over_at) == (1008.0, 1010.0)
    assert lease.seconds_left(1005.0, WALL + 5 * 10**9) == 5.0


def test_a_try_ends_with_the_lease_at_the_latest() -> None:
    lease = a_lease()
    assert [lease.try_for(1000 + age) for age in (0, 4, 5, 6, 7)] == [2.0, 2.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(("boot", "wall"), [(6.0, 0.0), (6.0, -3600.0), (0.0, 6.0), (1.0, 3600.0)])
def test_the_clock_on_which_more_has_passed_decides(boot: float, wall: float) -> None:
    lease, now = a_lease(WALL), (1000 + boot, WALL + round(wall * 1e9))
    assert lease.is_over(*now)
    assert lease.seconds_left(*now) == lease.try_for(*now) == 0.0


def test_a_wall_clock_that_is_set_back_prolongs_nothing_and_ends_nothing() -> None:
    assert a_lease(WALL).seconds_left(1002.0, WALL - 3600 * 10**9) == 4.0


def test_a_machine_that_slept_has_lost_its_lease() -> None:
    class Sleeping(SystemClock):
        slept = 0.0

        def boottime(self) -> float:
            return super().boottime() + self.slept

    clock = Sleeping()
    lease = LeaseClock(clock.boottime(), 3600.0, SHARES)
    assert not lease.is_over(clock.boottime())
    clock.slept = 3000.0
    assert lease.is_over(clock.boottime())


@given(
    duration=st.floats(0.1, 3600),
    tries=st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 2000), st.booleans()), max_size=10),
)
def test_it_is_over_before_a_store_that_heard_of_it_later_ends_it(
    duration: float, tries: list[tuple[float, float, bool]]
) -> None:
    """Each try is asked for after a while, stored after another, and perhaps told of."""
    lease, now, stored = LeaseClock(0.0, duration, SHARES), 0.0, 0.0
    for before, on_the_way, is_told in tries:
        asked = now = now + before
        if lease.is_over(now):
            return
        now += on_the_way
        if now < stored + duration:
            stored = now
            if is_told:
                lease.confirm(asked)
        if not lease.is_over(now):
            assert now < stored + duration
