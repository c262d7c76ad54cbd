"""The work: how a delay propagates from flight to flight, and that the digest reveals every change of order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights.flights import BadFlightError, Flight
from examples.flights.work import (
    FRESH,
    FRESH_START_MIN,
    PlaneState,
    expected,
    inherited,
    propagate,
    replay,
    turnaround_slack,
)

from .simulated import flight

ROUND_TRIP = 260  # two blocks of 45 + 400 / 8 minutes, two turnarounds of 35


def after(late: int) -> PlaneState:
    return propagate(FRESH, flight(0, sched=10_000, dep_delay=late, arr_delay=late))


def next_flight(gap: int, dep_delay: int | None = 500) -> Flight:
    return flight(1, sched=10_000 + gap, dep_delay=dep_delay, arr_delay=dep_delay)


def test_slack_is_what_a_round_trip_leaves() -> None:
    assert turnaround_slack(ROUND_TRIP + 25, 400) == 25
    assert turnaround_slack(ROUND_TRIP - 25, 400) == 0


@pytest.mark.parametrize(
    ("late", "slack", "dep_delay", "spread"),
    [
        (60, 0, 90, 60),  # all of it comes along
        (60, 45, 90, 15),  # the slack eats most
        (60, 60, 90, 0),  # all is eaten
        (60, 0, 20, 20),  # no more than the departure was late
        (60, 0, -5, 0),  # made up somewhere else
        (-20, 0, 90, 0),  # arrived early: the delay is the flight's own
        (600, FRESH_START_MIN - 1, 500, 241),
        (600, FRESH_START_MIN, 500, 0),  # a night on the ground
    ],
)
def test_inherited_minutes(late: int, slack: int, dep_delay: int, spread: int) -> None:
    assert inherited(after(late), next_flight(ROUND_TRIP + slack, dep_delay)) == spread


def test_spread_and_ripples_add_up() -> None:
    flights = [flight(k, sched=k * ROUND_TRIP, dep_delay=d, arr_delay=d) for k, d in enumerate([30, 40, 10, 0, 5])]
    states = [state for _, state in replay(flights)]
    assert [state.last_spread for state in states] == [0, 30, 10, 0, 0]
    assert [state.ripple for state in states] == [0, 1, 2, 0, 0]
    assert (states[-1].spread, states[-1].longest, states[-1].flights) == (40, 2, 5)


def test_a_cancelled_flight_leaves_the_delay_standing() -> None:
    state = propagate(after(60), next_flight(100, None))
    assert (state.cancelled, state.flights, state.late, state.last_spread) == (1, 2, 60, 0)
    assert inherited(state, next_flight(ROUND_TRIP)) == 60


def test_a_diverted_flight_counts_by_its_departure() -> None:
    assert propagate(FRESH, flight(0, dep_delay=33, arr_delay=None)).late == 33


def test_a_flight_without_aircraft_is_refused() -> None:
    with pytest.raises(BadFlightError):
        propagate(FRESH, flight(0, None))
    assert expected([flight(0, None), flight(1, "N1")]).keys() == {"N1"}


def test_the_state_travels() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(after(9)), type=PlaneState) == after(9)


@given(st.permutations(range(6)))
def test_the_digest_shows_any_other_order(order: list[int]) -> None:
    flights = [flight(k) for k in range(6)]
    same = expected(flights)["N1"].chain == expected(flights[k] for k in order)["N1"].chain
    assert same == (order == sorted(order))


@given(st.integers(0, 5), st.booleans())
def test_the_digest_shows_a_lost_and_a_doubled_flight(at: int, doubled: bool) -> None:
    flights = [flight(k) for k in range(6)]
    changed = flights[:at] + [flights[at]] * (2 if doubled else 0) + flights[at + 1 :]
    assert expected(flights)["N1"].chain != expected(changed)["N1"].chain
