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

One worker process of the demo: ``python -m examples.flights.work STORE NUMBER FOLDER CONCURRENCY``.

A flight is a job keyed by its aircraft. The job reads the aircraft's state from the stream of planes, adds
the flight, and emits the next state together with its completion: state, record and ack are one transaction.
Before it starts, it notes the flight in this worker's own file, so that the report can also show what the worker
was running when it was killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

import pelton
from examples.flights.flights import BadFlightError, Flight
from pelton.runtime import Clock

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


QUEUE: Final = "flights"
PLANES: Final = "planes"
LEASE_S: Final = 3.0
_START: Final = Struct("<IQ")


class Landed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The message of a flight in the stream of planes: the aircraft's state after it, and who did it when."""

    state: PlaneState
    flight: int
    worker: int
    start_ns: int
    end_ns: int


_encode: Final = msgspec.msgpack.Encoder().encode
decode_landed: Final = msgspec.msgpack.Decoder(Landed).decode


def monotonic_ns(clock: Clock) -> int:
    """Return the machine-wide monotonic time, comparable between processes."""
    return int(clock.monotonic() * 1e9)


def starts_file(folder: Path, number: int) -> Path:
    """Return the file in which worker ``number`` notes the flights that it begins."""
    return folder / f"worker-{number}.starts"


def read_starts(folder: Path, number: int) -> Iterator[tuple[int, int]]:
    """Yield ``(flight, start_ns)`` of every flight that a worker has begun."""
    path = starts_file(folder, number)
    raw = path.read_bytes() if path.exists() else b""
    # A killed worker may have left half a record at the end.
    yield from _START.iter_unpack(raw[: len(raw) - len(raw) % _START.size])


def begun(folder: Path, number: int) -> int:
    """Return how many flights a worker has begun."""
    path = starts_file(folder, number)
    return path.stat().st_size // _START.size if path.exists() else 0


async def open_queue(jet: pelton.Jet) -> pelton.Queue:
    """Open the demo's queue.

    One flight per aircraft at a time; a killed worker's flights are redelivered after the lease.
    """
    return await jet.queue(QUEUE, exclusive=True, lease=LEASE_S)


def register(queue: pelton.Queue, planes: pelton.Stream, number: int, starts: int) -> pelton.Job[..., None]:
    """Register the one job of the demo; ``starts`` is the descriptor of the worker's file."""
    clock = queue.jet.runtime.clock

    async def fly(flight: Flight, context: pelton.JobContext) -> None:
        start = monotonic_ns(clock)
        try:
            tail = flight.aircraft()
        except BadFlightError as error:
            raise pelton.PermanentJobError(error.reason) from error
        os.write(starts, _START.pack(flight.index, start))
        after = propagate(await state_of(planes, tail), flight)
        landed = Landed(after, flight.index, number, start, monotonic_ns(clock))
        context.emit(f"{PLANES}.{tail}", _encode(landed))

    return queue.job(fly)


async def state_of(planes: pelton.Stream, tail: str) -> PlaneState:
    """Return an aircraft's state after its last flight."""
    try:
        return decode_landed((await planes.get_last_message(f"{PLANES}.{tail}")).data).state
    except pelton.MessageNotFoundError:
        return FRESH


async def work(store: str, number: int, folder: Path, concurrency: int) -> None:
    """Work until SIGTERM."""
    starts = os.open(starts_file(folder, number), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        async with pelton.open(store) as jet:
            queue = await open_queue(jet)
            register(queue, await jet.stream(PLANES), number, starts)
            await queue.work(concurrency=concurrency)
    finally:
        os.close(starts)


if __name__ == "__main__":
    # Thousands of flights without an aircraft fail; the report shows them, and the screen is the other process's.
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
