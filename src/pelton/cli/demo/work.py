"""One worker process of the demo: ``python -m pelton.cli.demo.work STORE NUMBER FOLDER CONCURRENCY``.

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
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

import pelton
from pelton.cli.demo.flights import BadFlightError, Flight
from pelton.cli.demo.propagation import FRESH, PlaneState, propagate
from pelton.runtime import Clock

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
