"""Pure decisions: what follows an attempt, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import Backoff
from pelton.queue.decide import Again, Finish, after_deaths, after_error
from pelton.queue.failure import describe, trace
from pelton.queue.job import DEFAULT_BACKOFF, JobRules
from pelton.queue.model import ENDINGS, TRANSITIONS
from pelton.runtime import Random


@given(attempt=st.integers(1, 40), seed=st.integers())
def test_the_default_backoff_doubles_within_bounds(attempt: int, seed: int) -> None:
    decision = after_error(ValueError(), attempt, JobRules(max_attempts=100), Random(seed))
    assert isinstance(decision, Again)
    full = min(2.0 ** (attempt - 1), 600.0)
    assert full * (1 - DEFAULT_BACKOFF.jitter) <= decision.delay <= full


def test_equal_seeds_give_equal_delays() -> None:
    rules = JobRules(backoff=Backoff(base=1, jitter=1))
    delays = [[after_error(ValueError(), n, rules, Random(7)) for n in range(1, 5)] for _ in range(2)]
    assert delays[0] == delays[1]


@pytest.mark.parametrize(("attempt", "ends"), [(1, False), (4, False), (5, True), (6, True)])
def test_the_last_attempt_ends_the_job(attempt: int, ends: bool) -> None:
    assert isinstance(after_error(ValueError(), attempt, JobRules(), Random(0)), Finish) is ends


@pytest.mark.parametrize(("attempt", "ends"), [(1, False), (3, False), (4, True)])
def test_deaths_count_as_attempts(attempt: int, ends: bool) -> None:
    assert (after_deaths(attempt, 3) is not None) is ends


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("x"), "ValueError: x"), (TimeoutError(), "TimeoutError"), (OSError("\udcff"), "OSError: \\udcff")],
)
def test_errors_are_described_storably(error: Exception, text: str) -> None:
    assert describe(error) == text


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [UnprintableError(), OSError("\udcff"), ValueError("long" * 10_000), SystemExit(3)])
def test_tracebacks_are_storable_and_bounded(error: BaseException) -> None:
    assert trace(error) == ""
    try:
        raise error
    except BaseException as caught:  # some are none of Exception
        text = trace(caught)
    assert "in test_tracebacks_are_storable_and_bounded" in text
    assert len(text.encode()) <= 8192


def test_the_table_of_transitions_is_whole() -> None:
    states = {state for _, _, state in TRANSITIONS}
    assert states == {"pending", "running", "retrying", *ENDINGS}
    assert {before for before, _, _ in TRANSITIONS} == {None, *states} - set(ENDINGS)
    assert len({(before, event) for before, event, _ in TRANSITIONS}) == len(TRANSITIONS)
