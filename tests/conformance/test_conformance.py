"""Every behaviour on every backend. The real server is the oracle."""

from contextlib import suppress

import pytest

import pelton
from tests.conformance.cases import CASES, Case
from tests.conformance.conftest import Opened
from tests.conformance.differences import NOT_REPLICATED

TARGETS = ("engine-memory", "engine-file", "nats", "nats-cluster")
_TRIES = 4
_SECOND_LOOK = 2


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
        await _sooner_or_later(case, opened, _TRIES if case.lags else _SECOND_LOOK)
        return
    if target == "nats" and case.lags:
        await _sooner_or_later(case, opened, _TRIES)
        return
    async with opened() as jet:
        await case.run(jet)


async def _sooner_or_later(case: Case, opened: Opened, tries: int) -> None:
    """State a case until it holds: three servers on a busy machine now and then elect anew, or hear late."""
    for _ in range(tries - 1):
        with suppress(AssertionError, pelton.PeltonError):
            async with opened() as jet:
                await case.run(jet)
            return
    async with opened() as jet:
        await case.run(jet)


def test_names_are_unique_and_differences_have_reasons() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.reason for case in CASES if case.side is not None)
    assert set(NOT_REPLICATED) <= {case.name for case in CASES}
