"""The table of growth: its cases name what exists, and its exponents are right."""

import pytest

from benchmarks.growth import case_of, exponent, section, sizes
from benchmarks.runner import Outcome
from tests.benchmarks.test_bench_cases import exists


@pytest.mark.parametrize(("first", "last", "told"), [(1.0, 10.0, "1.00"), (2.0, 2.0, "0.00"), (None, 1.0, "-")])
def test_the_exponent_is_that_of_the_growth(first: float | None, last: float, told: str) -> None:
    assert exponent(first, last, 10) == told


def test_a_table_has_a_line_for_each_verb() -> None:
    case = case_of("queues", sizes("queues", full=False))
    assert all(exists(contender.target) for contender in case.contenders)
    outcome = Outcome(case)
    for contender, cost in zip(case.contenders, (1.0, 10.0, 100.0), strict=True):
        outcome.add(contender.name, {"open": cost})
    assert "| open (ms) | 1.00 | 10.0 | 100.0 | 1.00 |" in section(outcome)


def test_a_size_that_failed_is_a_dash() -> None:
    outcome = Outcome(case_of("jobs", (10, 100)))
    outcome.add("10", {"open": 1.0})
    outcome.add("100", None)
    assert "| open (ms) | 1.00 | - | - |" in section(outcome)
