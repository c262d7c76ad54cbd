"""Every behaviour on every backend. The real server is the oracle."""

import pytest

import pelton
from pelton.testing.conformance import CASES, Case
from tests.conformance.conftest import Opened
from tests.conformance.differences import NOT_REPLICATED

TARGETS = ("engine-memory", "engine-file", "nats", "nats-cluster")


_TRIES = 4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_conformance(case: Case, target: str, opened: Opened) -> None:
    if case.side is not None and (case.side == "server") != target.startswith("nats"):
        pytest.skip(f"only on the {case.side}: {case.reason}")
    if target == "nats-cluster":
        if case.name in NOT_REPLICATED:
            pytest.skip(NOT_REPLICATED[case.name])
        if case.limits is not None:
            pytest.skip("the limits of an account count every replica")
        await _replicated(case, opened)
        return
    async with opened() as jet:
        await case.run(jet)


async def _replicated(case: Case, opened: Opened) -> None:
    """State a case where what one server knows another hears later: it holds when no server lags behind."""
    for last in [False] * (_TRIES - 1) + [True]:
        try:
            async with opened() as jet:
                await case.run(jet)
        except (AssertionError, pelton.PeltonError):
            if last:
                raise
        else:
            return


def test_names_are_unique_and_differences_have_reasons() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.reason for case in CASES if case.side is not None)
    assert set(NOT_REPLICATED) <= {case.name for case in CASES}
