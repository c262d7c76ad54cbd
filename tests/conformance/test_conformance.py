"""Every behaviour on every backend. The real server is the oracle."""

import pytest

import pelton
from tests.conformance.cases import CASES, Case
from tests.conformance.conftest import Opened
from tests.conformance.differences import NOT_REPLICATED, SERVED_OTHERWISE
from tests.conformance.second_tries import TRIES, why_again
from tests.reporting import SECOND_TRY

TARGETS = ("engine-memory", "engine-file", "served", "nats", "nats-cluster")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_conformance(case: Case, target: str, opened: Opened, request: pytest.FixtureRequest) -> None:
    if case.side is not None and (case.side == "server") != (target not in ("engine-memory", "engine-file")):
        pytest.skip(f"only on the {case.side}: {case.reason}")
    if target == "nats-cluster":
        if case.name in NOT_REPLICATED:
            pytest.skip(NOT_REPLICATED[case.name])
        if case.limits is not None:
            pytest.skip("the limits of an account count every replica")
    if target == "served" and case.name in SERVED_OTHERWISE:
        pytest.skip(SERVED_OTHERWISE[case.name])
    if not target.startswith("nats"):
        async with opened() as jet:
            await case.run(jet)
        return
    for tried in range(1, TRIES + 1):
        try:
            async with opened() as jet:
                await case.run(jet)
            return
        except (AssertionError, pelton.PeltonError) as error:
            why = why_again(case, error, replicated=target == "nats-cluster")
            if tried == TRIES or not why:
                raise
            request.node.user_properties.append((SECOND_TRY, why))


def test_names_are_unique_and_differences_have_reasons() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.reason for case in CASES if case.side is not None)
    assert set(NOT_REPLICATED) | set(SERVED_OTHERWISE) <= {case.name for case in CASES}
