"""Programs that once found a difference, each as short as Hypothesis could make it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.stage import Stage
from tests.differential.stage import stage as on_stage
from tests.differential.steps import CreateStream, Step, UpdateStream
from tests.differential.steps_consumers import CreateConsumer, Reset
from tests.differential.steps_publish import Publish, PublishMany

_S = {"subjects": ("s.>",)}
_T = {"subjects": ("t.>",)}
_FOUND: dict[str, list[Step]] = {
    "what is republished, and then published": [
        CreateStream(config={**_S, "republish": {"src": "s.>", "dest": "t.>"}}),
        CreateStream(config=_T, name="T"),
        PublishMany(messages=(("s.a", 0), ("t.a", 1), ("s.b", 10), ("s.a", 0), ("t.a", 0))),
    ],
    "kept by interest after a reset beyond the end": [
        CreateStream(config=_S),
        CreateConsumer(),
        Publish(size=0),
        Reset(seq=3),
        UpdateStream(config={**_S, "retention": "interest"}),
    ],
    "a reset beside a publish": [
        CreateStream(config=_S),
        CreateConsumer(),
        Publish(size=0),
        Reset(seq=1),
    ],
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with on_stage(tmp_path_factory.mktemp("nats")) as ready:
        yield ready


@pytest.mark.parametrize("program", _FOUND.values(), ids=_FOUND)
def test_once_found(stage: Stage, program: list[Step]) -> None:
    stage.play(program, watched=True)
