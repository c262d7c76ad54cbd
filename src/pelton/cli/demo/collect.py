"""Collects the record of a run from the store and from the workers' notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import pelton
from pelton.cli.demo.flights import Flight
from pelton.cli.demo.propagation import PlaneState
from pelton.cli.demo.record import FlightAttempt, FlightDeadLetter, Run, WorkerRecord
from pelton.cli.demo.work import PLANES, Landed, decode_landed, open_queue, read_starts

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
