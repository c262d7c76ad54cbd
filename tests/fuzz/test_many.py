"""So many odd inputs as there is time for in `make test-slow`, the same in every run; `make fuzz` plays others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.play import PLAYS
from tests.fuzz.run import Fuzzing
from tests.fuzz.sides import running_pair

_INPUTS = 100_000


@pytest.mark.timeout(600)
def test_odd_inputs_are_answered_as_by_nats_server(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        fuzzing = Fuzzing(pair)
        fuzzing.play_many(_INPUTS, 1, list(PLAYS))
    print(fuzzing.report())
    assert fuzzing.inputs.total() >= _INPUTS
    assert fuzzing.found == []
