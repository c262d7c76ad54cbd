"""Every behaviour on every backend. The real server is the oracle."""

import pytest

import pelton
from pelton.testing.conformance import CASES, Case

TARGETS = ("engine-memory", "engine-file", "nats")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_conformance(case: Case, target: str, jet: pelton.Jet) -> None:
    if case.side is not None and (case.side == "server") != (target == "nats"):
        pytest.skip(f"only on the {case.side}: {case.reason}")
    await case.run(jet)


def test_names_are_unique_and_differences_have_reasons() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.reason for case in CASES if case.side is not None)
