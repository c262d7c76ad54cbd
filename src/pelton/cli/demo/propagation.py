"""How an aircraft hands a delay from one flight to the next: the demo's work, as a pure fold.

The input shows departures from New York only, so between two of them an aircraft flies out, turns round,
flies back and turns round again. The rest of the scheduled gap is the slack, and slack
absorbs a delay:

    slack     = gap between scheduled departures - (2 x block + 2 x turnaround), never below 0
    inherited = what the slack left of the last arrival delay, at most the observed departure delay

Inherited minutes are delay that the last flight spread to this one. A slack of six hours or more (a night on
the ground, a visit to the hangar) resets it. A cancelled flight changes nothing: the aircraft stays where
it was, with the delay it had. Of a diverted flight only the departure delay is known, which is used for
the arrival's.

The state also carries a digest chained over the flights it has seen, in the order in which it saw them. So a
flight that was lost, done twice or done out of order is detected, even if the minutes happen to be
equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from pelton.cli.demo.flights import Flight

TURNAROUND_MIN = 35
TAXI_MIN = 45
MILES_PER_MIN = 8.0
FRESH_START_MIN = 6 * 60


class PlaneState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an aircraft's next flight needs to know of the flights before it.

    `sched`, `distance` and `late` are the last flown flight's scheduled departure (minutes since 1970, UTC),
    length (miles) and arrival delay (minutes, 0 if early). `spread` is the sum of inherited minutes so far,
    `last_spread` the last flight's part of it; `ripple` is how many flights in a row have inherited,
    `longest` the most that ever did.
    """

    flights: int = 0
    cancelled: int = 0
    sched: int = 0
    distance: int = 0
    late: int = 0
    spread: int = 0
    last_spread: int = 0
    ripple: int = 0
    longest: int = 0
    last_index: int = -1
    chain: str = ""


FRESH = PlaneState()


def propagate(state: PlaneState, flight: Flight) -> PlaneState:
    """Return the state after `flight`; raises `BadFlightError` if it has no aircraft."""
    flight.aircraft()
    if flight.dep_delay is None:
        return msgspec.structs.replace(
            state,
            flights=state.flights + 1,
            cancelled=state.cancelled + 1,
            last_spread=0,
            last_index=flight.index,
            chain=_link(state.chain, flight),
        )
    spread = inherited(state, flight)
    ripple = state.ripple + 1 if spread else 0
    arrived = flight.dep_delay if flight.arr_delay is None else flight.arr_delay
    return PlaneState(
        flights=state.flights + 1,
        cancelled=state.cancelled,
        sched=flight.sched,
        distance=flight.distance,
        late=max(0, arrived),
        spread=state.spread + spread,
        last_spread=spread,
        ripple=ripple,
        longest=max(state.longest, ripple),
        last_index=flight.index,
        chain=_link(state.chain, flight),
    )


def inherited(state: PlaneState, flight: Flight) -> int:
    """Return the minutes of the flight's departure delay that its aircraft brought along."""
    if not state.late or not flight.dep_delay:
        return 0
    slack = turnaround_slack(flight.sched - state.sched, state.distance)
    if slack >= FRESH_START_MIN:
        return 0
    return max(0, min(flight.dep_delay, state.late - slack))


def turnaround_slack(gap_min: int, distance: int) -> int:
    """Return the spare minutes between two departures, for an aircraft that went `distance` miles out and back."""
    block = TAXI_MIN + distance / MILES_PER_MIN
    return max(0, gap_min - round(2 * (block + TURNAROUND_MIN)))


def replay(flights: Iterable[Flight]) -> Iterator[tuple[Flight, PlaneState]]:
    """Yield every good flight with its aircraft's state after it; bad flights are skipped."""
    states: dict[str, PlaneState] = {}
    for flight in flights:
        if flight.tailnum is not None:
            state = states[flight.tailnum] = propagate(states.get(flight.tailnum, FRESH), flight)
            yield flight, state


def expected(flights: Iterable[Flight]) -> dict[str, PlaneState]:
    """Return the serial truth: each aircraft's final state if the flights, in time order, are done once each."""
    return {flight.aircraft(): state for flight, state in replay(flights)}


def _link(chain: str, flight: Flight) -> str:
    seen = f"{chain}|{flight.index}|{flight.name}|{flight.sched}"
    return blake2b(seen.encode(), digest_size=8).hexdigest()
