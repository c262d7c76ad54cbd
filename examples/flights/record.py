"""The record of a run, for the checks, the report and the picture.

All times are nanoseconds of one clock that the processes of a machine share (Linux and macOS: the monotonic
one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import pelton
from examples.flights.flights import Flight
from examples.flights.work import PLANES, Landed, PlaneState, decode_landed, open_queue, read_starts


class FlightAttempt(NamedTuple):
    """One attempt of a worker at a flight.

    `done` is true if its result counts: it was committed together with the job. An attempt whose worker died
    has no end (`end_ns` is None) and is not done; neither is one whose late result was refused.
    """

    aircraft: str
    flight: int
    worker: int
    start_ns: int
    end_ns: int | None
    done: bool = True


class FlightDeadLetter(NamedTuple):
    """A flight that was given up, by its index, and why."""

    flight: int
    reason: str


class WorkerRecord(NamedTuple):
    """One worker process; a replacement is a separate worker, with the next number.

    For a killed one, `killed_ns` is read just before the signal is sent and `gone_ns` after the process was
    reaped: it died between the two. Its flights may be taken over from the first on, and it can begin nothing
    after the second.
    """

    number: int
    pid: int
    started_ns: int
    killed_ns: int | None = None
    gone_ns: int | None = None


@dataclass(frozen=True)
class Run:
    """One whole run. `left` counts the jobs that were still waiting or running when it ended."""

    flights: Sequence[Flight]
    states: Mapping[str, PlaneState]
    attempts: Sequence[FlightAttempt]
    dead: Sequence[FlightDeadLetter]
    workers: Sequence[WorkerRecord]
    started_ns: int
    ended_ns: int
    left: int = 0

    @property
    def seconds(self) -> float:
        """How long it took, at least a nanosecond: rates divide by it."""
        return max(1, self.ended_ns - self.started_ns) / 1e9

    @property
    def killed(self) -> Sequence[WorkerRecord]:
        """The workers that were killed during the run, first to last."""
        return sorted((w for w in self.workers if w.killed_ns is not None), key=lambda w: w.killed_ns or 0)

    def end_of(self, attempt: FlightAttempt) -> int | None:
        """Return when an attempt stopped: at its end, or with its worker; None if neither is known."""
        if attempt.end_ns is not None:
            return attempt.end_ns
        killed = next((w.killed_ns for w in self.workers if w.number == attempt.worker), None)
        return None if killed is None else max(killed, attempt.start_ns)


# --- collects the record of a run from the store and from the workers' notes

_PAGE: Final = 1000


class FlyArguments(msgspec.Struct, frozen=True):
    """The arguments of the demo's job, as a dead letter keeps them."""

    flight: Flight


_arguments: Final = msgspec.json.Decoder(FlyArguments).decode


class Times(NamedTuple):
    """When the run began and ended, on the machine's monotonic clock."""

    started_ns: int
    ended_ns: int


async def collect(
    jet: pelton.Jet, folder: Path, flights: Sequence[Flight], workers: Sequence[WorkerRecord], times: Times
) -> Run:
    """Return the record of a run that has ended."""
    landed = await _landed(jet)
    queue = await open_queue(jet)
    dead = [
        FlightDeadLetter(_arguments(letter.envelope.args).flight.index, letter.outcome.error)
        async for letter in queue.dead_letters()
    ]
    return Run(
        flights=flights,
        states=_states(landed),
        attempts=_attempts(landed, flights, workers, folder),
        dead=dead,
        workers=workers,
        started_ns=times.started_ns,
        ended_ns=times.ended_ns,
        left=(await queue.counts()).unfinished,
    )


async def _landed(jet: pelton.Jet) -> list[tuple[str, Landed]]:
    planes = await jet.stream(PLANES)
    consumer = await planes.create_consumer(ack_policy="none")
    found: list[tuple[str, Landed]] = []
    while page := await consumer.fetch(_PAGE, no_wait=True):
        found += [(message.subject.partition(".")[2], decode_landed(message.data)) for message in page]
    await consumer.delete()
    return found


def _states(landed: Sequence[tuple[str, Landed]]) -> dict[str, PlaneState]:
    """Return each aircraft's last state: the stream is in the order in which flights were committed."""
    return {tail: record.state for tail, record in landed}


def _attempts(
    landed: Sequence[tuple[str, Landed]], flights: Sequence[Flight], workers: Sequence[WorkerRecord], folder: Path
) -> list[FlightAttempt]:
    """Return the committed attempts, and those begun without a result."""
    attempts = [FlightAttempt(tail, r.flight, r.worker, r.start_ns, r.end_ns) for tail, r in landed]
    committed = {(r.worker, r.flight, r.start_ns) for _, r in landed}
    tails = {flight.index: flight.tailnum for flight in flights}
    for worker in workers:
        for flight, start in read_starts(folder, worker.number):
            if (worker.number, flight, start) not in committed:
                attempts.append(FlightAttempt(tails[flight] or "", flight, worker.number, start, None, done=False))
    return attempts
