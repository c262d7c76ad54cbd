"""Runs that never happened: a deterministic stand-in for workers on a queue, with a kill."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random

from examples.flights.flights import Flight
from examples.flights.record import FlightAttempt, FlightDeadLetter, Run, WorkerRecord
from examples.flights.work import expected

MS = 1_000_000
START = 1_000 * MS


def flight(index: int, tailnum: str | None = "N1", sched: int | None = None, **changes: object) -> Flight:
    """A flight of 400 miles; by default six hours after the one with the index before."""
    at = 22_617_000 + index * 360 if sched is None else sched
    fields: dict[str, object] = {
        "carrier": "UA",
        "number": 100 + index,
        "origin": "EWR",
        "dest": "IAH",
        "distance": 400,
        "dep_delay": 0,
        "arr_delay": 0,
    }
    return Flight(index=index, sched=at, local=at - 300, tailnum=tailnum, **(fields | changes))  # type: ignore[arg-type]


class Simulation:
    """Three workers with `slots` slots each; worker 2 dies at `kill_ns`, and worker 4 replaces it."""

    def __init__(self, flights: Sequence[Flight], kill_ns: int | None, slots: int = 8, seed: int = 7) -> None:
        self.flights, self.kill_ns, self.random = flights, kill_ns, Random(seed)
        self.hands = [(START + number * MS, number) for number in (1, 2, 3) for _ in range(slots)]
        if kill_ns is not None:
            self.hands += [(kill_ns + 250 * MS, 4)] * slots
        heapq.heapify(self.hands)
        self.busy: dict[str, int] = {}
        self.attempts: list[FlightAttempt] = []

    def run(self) -> Run:
        for one in self.flights:
            if one.tailnum is not None:
                while not self._attempt(one):
                    pass
        end = max((attempt.end_ns or 0 for attempt in self.attempts), default=START) + MS
        dead = [FlightDeadLetter(f.index, "no aircraft") for f in self.flights if f.tailnum is None]
        return Run(self.flights, expected(self.flights), self.attempts, dead, self._workers(), START, end)

    def _attempt(self, one: Flight) -> bool:
        tail = one.aircraft()
        free, worker = heapq.heappop(self.hands)
        start = max(free, self.busy.get(tail, 0))
        end = start + int(self.random.lognormvariate(0.9, 0.4) * MS)
        if worker != 2 or self.kill_ns is None or end <= self.kill_ns:
            self.attempts.append(FlightAttempt(tail, one.index, worker, start, end))
            self.busy[tail] = end
            heapq.heappush(self.hands, (end, worker))
            return True
        if start < self.kill_ns:
            self.attempts.append(FlightAttempt(tail, one.index, worker, start, None, done=False))
            self.busy[tail] = self.kill_ns + int(self.random.uniform(8, 40) * MS)
        return False

    def _workers(self) -> list[WorkerRecord]:
        workers = [WorkerRecord(number, 4_100 + number, START) for number in (1, 2, 3)]
        if self.kill_ns is not None:
            workers[1] = workers[1]._replace(killed_ns=self.kill_ns, gone_ns=self.kill_ns + MS)
            workers.append(WorkerRecord(4, 4_177, self.kill_ns + 200 * MS))
        return workers
