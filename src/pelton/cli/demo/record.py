"""The record of a run, for the checks, the report and the picture.

All times are nanoseconds of one clock that the processes of a machine share (Linux and macOS: the monotonic
one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pelton.cli.demo.flights import Flight
from pelton.cli.demo.propagation import PlaneState


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
