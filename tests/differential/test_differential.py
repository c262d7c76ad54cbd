"""Random programs on the embedded engine and on a real nats-server: both must be observed doing the same.

`make test` runs a few, always the same ones; `make differential` runs thousands, new ones each time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.differential.programs import programs
from tests.differential.stage import Stage
from tests.differential.stage import stage as on_stage
from tests.differential.steps import Step


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with on_stage(tmp_path_factory.mktemp("nats")) as ready:
        yield ready
        pair = ready.pair
        print(f"\n{pair.programs} programs, {pair.steps} steps, {pair.comparisons} comparisons")


@settings(derandomize=settings().max_examples == settings.get_profile("default").max_examples)
@given(program=programs(), watched=st.booleans())
def test_engine_and_server_do_the_same(stage: Stage, program: list[Step], watched: bool) -> None:
    lines = "\n".join(f"    {step!r}," for step in program)
    note(f"stage.play([\n{lines}\n], watched={watched})")
    stage.play(program, watched=watched)
