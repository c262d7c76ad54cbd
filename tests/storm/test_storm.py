"""A small storm in every run of the tests; ``make storm`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storm.storm import storms

_EACH = 75


async def test_a_storm_breaks_no_promise(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    troubles, seed = (int(pytestconfig.getoption(f"--{option}")) for option in ("troubles", "storm-seed"))
    result = await storms(tmp_path, seed, troubles, _EACH)
    print(result)
    assert result.problems == [], f"--storm-seed {seed} --troubles {troubles}"
    assert min(result.counts[word] for word in ("kills", "published", "settled", "kept", "starts of jobs")) > 0
