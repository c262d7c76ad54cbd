"""Pure decisions: what follows an attempt, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import (
    Backoff,
    Cancel,
    Discard,
    JobArgumentsError,
    JobCancelledError,
    JobResultError,
    PermanentJobError,
    RetryJob,
    UnknownJobError,
)
from pelton.api.errors import from_reply
from pelton.api.job_errors import describe, trace
from pelton.queue.model.options import DEFAULT_BACKOFF, JobRules
from pelton.queue.model.records import (
    COMPLETED,
    Again,
    Decide,
    Finish,
    PutOff,
    after_deaths,
    after_error,
    after_refusal,
)
from pelton.queue.model.states import AFTER_ATTEMPT, ENDINGS, AttemptEnd
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


@pytest.mark.parametrize(
    ("error", "attempt", "end"),
    [
        (ValueError(), 1, "error"),
        (RetryJob(5), 1, "error"),
        (ValueError(), 3, "last attempt"),
        (RetryJob(5), 3, "last attempt"),
        (PermanentJobError(), 1, "permanent error"),
        (JobResultError("job", "x"), 1, "permanent error"),
        (KeyError(), 1, "permanent error"),
        (JobCancelledError("1"), 1, "Cancel"),
        (JobCancelledError("1"), 3, "Cancel"),
        (Cancel("sold"), 1, "Cancel"),
        (Discard("no use"), 1, "Discard"),
    ],
)
@pytest.mark.parametrize("decide", [after_error, after_refusal])
def test_an_error_is_followed_by_what_the_table_says(
    error: BaseException, attempt: int, end: AttemptEnd, decide: Decide
) -> None:
    decision = decide(error, attempt, JobRules(max_attempts=3, permanent=(KeyError,)), Random(0))
    assert (decision.state if isinstance(decision, Finish) else "retrying") == AFTER_ATTEMPT[end]
    assert isinstance(decision, Again) == (AFTER_ATTEMPT[end] == "retrying")
    if isinstance(decision, Again) and isinstance(error, RetryJob):
        assert decision.delay == 5


def test_a_job_waits_for_a_worker_that_can_run_it() -> None:
    for error in (UnknownJobError("f"), JobArgumentsError("f", "x", is_stored=True)):
        decision = after_error(error, 3, JobRules(max_attempts=3), Random(0))
        assert isinstance(decision, PutOff)
        assert decision.delay is None
    assert isinstance(after_error(JobArgumentsError("f", "x"), 1, JobRules(), Random(0)), Finish)


def test_an_attempt_ends_in_some_way_with_every_ending() -> None:
    refused = after_refusal(from_reply(400, 10054, "too large"), 1, JobRules(), Random(0))
    ways = (refused, after_deaths(9, 3), COMPLETED)
    assert [finish.state for finish in ways if isinstance(finish, Finish)] == [
        AFTER_ATTEMPT[end] for end in ("refused", "deaths", "return")
    ]
    assert set(AFTER_ATTEMPT.values()) == {"retrying", *ENDINGS}
