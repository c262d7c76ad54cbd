"""Waits grow, stay under the cap, and are spread."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import Backoff, ConfigError


def test_waits_double_up_to_the_cap_without_jitter() -> None:
    backoff = Backoff(base=1, factor=2, cap=10, jitter=0)
    assert [backoff.delay(attempt, random.Random(0)) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@given(st.integers(1, 10**6), st.floats(0, 1), st.integers())
def test_jitter_only_shortens(attempt: int, jitter: float, seed: int) -> None:
    full = Backoff(base=0.5, factor=3, cap=60, jitter=0).delay(attempt, random.Random(0))
    delay = Backoff(base=0.5, factor=3, cap=60, jitter=jitter).delay(attempt, random.Random(seed))
    assert full * (1 - jitter) <= delay <= full <= 60


def test_the_first_attempt_is_number_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        Backoff().delay(0, random.Random(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": 0},
        {"base": -1},
        {"base": "x"},
        {"jitter": True},
        {"base": 20, "cap": 10},
        {"cap": math.inf},
        {"base": math.nan},
        {"factor": 0.5},
        {"factor": math.inf},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="backoff"):
        Backoff(**wrong)
