"""The checks pass a clean run, killed worker included, and name each violation in a broken one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.flights import checks
from examples.flights.checks import PromiseCheck, check, passed
from examples.flights.record import FlightAttempt, FlightDeadLetter, Run
from examples.flights.work import FRESH

from .simulated import MS, START, Simulation, flight


@pytest.fixture
def run() -> Run:
    flights = [flight(k, None if k % 40 == 7 else f"N{k * 7 % 19}") for k in range(400)]
    return Simulation(flights, START + 20 * MS).run()


def cut_short(run: Run) -> FlightAttempt:
    return next(attempt for attempt in run.attempts if not attempt.done)


def breach(verdict: PromiseCheck) -> str:
    assert not verdict.passed
    return verdict.detail


def test_a_clean_run_passes_with_a_kill_in_it(run: Run) -> None:
    assert cut_short(run).worker == 2
    verdicts = check(run)
    assert passed(verdicts), verdicts
    assert len(verdicts) == 6
    assert "pid 4102" in verdicts[-1].detail


def test_a_run_without_a_kill_passes() -> None:
    assert passed(check(Simulation([flight(k) for k in range(9)], None).run()))


def test_an_empty_run_passes() -> None:
    assert passed(check(Run([], {}, [], [], [], 0, 0)))


def test_a_lost_flight(run: Run) -> None:
    lost = replace(run, attempts=[a for a in run.attempts if a.flight != 5])
    assert breach(checks.exactly_once(lost)) == "flight 5 was lost"


def test_a_doubled_flight(run: Run) -> None:
    doubled = replace(run, attempts=[*run.attempts, next(a for a in run.attempts if a.flight == 5 and a.done)])
    assert breach(checks.exactly_once(doubled)) == "flight 5 was done 2 times"


def test_a_bad_flight_that_was_done(run: Run) -> None:
    done = replace(run, attempts=[*run.attempts, FlightAttempt("", 7, 1, START, START + 1)])
    assert breach(checks.exactly_once(done)) == "flight 7 was done though it is not good input"


def test_jobs_left_over(run: Run) -> None:
    assert breach(checks.exactly_once(replace(run, left=3))) == "jobs left in the queue: 3"


def test_a_state_that_differs(run: Run) -> None:
    assert "N3: has" in breach(checks.same_as_serial(replace(run, states={**run.states, "N3": FRESH})))


def test_a_state_that_is_missing(run: Run) -> None:
    states = {tail: state for tail, state in run.states.items() if tail != "N3"}
    assert "N3: has None" in breach(checks.same_as_serial(replace(run, states=states)))


def test_flights_out_of_order() -> None:
    attempts = [FlightAttempt("N1", 1, 1, START, START + 1), FlightAttempt("N1", 0, 1, START + 2, START + 3)]
    run = Run([flight(0), flight(1)], {}, attempts, [], [], START, START + 9)
    assert breach(checks.in_order(run)) == "N1: flight 0 was begun after flight 1"


def test_two_at_once() -> None:
    attempts = [FlightAttempt("N1", 0, 1, START, START + 5), FlightAttempt("N1", 1, 2, START + 4, START + 9)]
    run = Run([flight(0), flight(1)], {}, attempts, [], [], START, START + 9)
    assert breach(checks.never_two(run)) == "N1: flight 1 began while flight 0 was in hand"


def test_a_long_attempt_under_short_ones() -> None:
    times = [(0, 100), (10, 20), (30, 40)]
    attempts = [FlightAttempt("N1", k, k, START + a, START + b) for k, (a, b) in enumerate(times)]
    run = Run([], {}, attempts, [], [], START, START + 100)
    assert "(and 1 more)" in breach(checks.never_two(run))


def test_taking_over_before_the_kill_is_two_at_once(run: Run) -> None:
    cut = cut_short(run)
    early = [a._replace(start_ns=cut.start_ns + 1) if a.flight == cut.flight and a.done else a for a in run.attempts]
    assert f"flight {cut.flight} began while" in breach(checks.never_two(replace(run, attempts=early)))


def test_an_attempt_that_never_ended(run: Run) -> None:
    workers = [worker._replace(killed_ns=None) for worker in run.workers]
    assert "never ended, and no worker was killed" in breach(checks.never_two(replace(run, workers=workers)))


@pytest.mark.parametrize(
    ("dead", "words"),
    [
        ([], "flight 7 has no aircraft and no dead letter"),
        ([FlightDeadLetter(7, "none")] * 2, "flight 7 has 2 dead letters"),
        ([FlightDeadLetter(7, "none"), FlightDeadLetter(8, "crash")], "flight 8 is good input, but a dead letter"),
        ([FlightDeadLetter(7, " ")], "the dead letter of flight 7 gives no reason"),
    ],
)
def test_dead_letters(dead: list[FlightDeadLetter], words: str) -> None:
    run = Run([flight(7, None), flight(8)], {}, [], dead, [], 0, 1)
    assert breach(checks.dead_letters(run)) == words


def test_a_stranded_flight(run: Run) -> None:
    cut = cut_short(run)
    stranded = replace(run, attempts=[a for a in run.attempts if a.flight != cut.flight or a is cut])
    assert f"flight {cut.flight} was in worker 2's hands" in breach(checks.taken_over(stranded))


def test_a_dead_worker_that_works(run: Run) -> None:
    ghost = FlightAttempt("N1", 399, 2, run.ended_ns, run.ended_ns + 1)
    assert "began flight 399 after its death" in breach(
        checks.taken_over(replace(run, attempts=[*run.attempts, ghost]))
    )


def test_nobody_works_on(run: Run) -> None:
    killed = run.killed[0].killed_ns or 0
    stopped = replace(run, attempts=[a for a in run.attempts if a.start_ns < killed and a.done])
    assert breach(checks.taken_over(stopped)) == "no worker continued after worker 2 died"
