"""A short soak in every run of the tests; ``make soak`` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.soak.run import Stage


async def test_a_short_soak_contradicts_no_promise(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    result = await Stage(tmp_path / "store", tmp_path / "history", seed=20260711).run(lambda acts: acts < 14)
    assert result.problems == []
    assert min(result.counts[word] for word in ("kills", "stops", "settled", "redeliveries")) > 0
