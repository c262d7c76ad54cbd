"""Programs that once found a difference, each as short as Hypothesis could make it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.stage import Stage
from tests.differential.stage import stage as on_stage
from tests.differential.steps import CreateStream, Purge, Step, UpdateStream
from tests.differential.steps_consumers import Ack, CreateConsumer, Fetch, ListConsumers, Reset
from tests.differential.steps_publish import Publish, PublishAtomic, PublishMany

_S = {"subjects": ("s.>",)}
_T = {"subjects": ("t.>",)}
_FOUND: dict[str, list[Step]] = {
    "what an ack of all before has settled": [
        CreateStream(config=_S),
        CreateConsumer(config={"ack_policy": "all"}),
        PublishMany(messages=(("s.a", 0), ("s.a", 0))),
        Fetch(),
        Fetch(),
        Ack(),
        Ack(kind="nak", back=1),
    ],
    "what is left of the last of each subject": [
        CreateStream(config=_S),
        PublishMany(messages=(("s.a", 0), ("s.a", 0), ("s.a", 0))),
        CreateConsumer(config={"deliver_policy": "last_per_subject", "filter_subject": ">"}),
        Publish(size=0),
        Purge(seq=3),
    ],
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
    "what comes before a reset beyond the end": [
        CreateStream(config=_S),
        CreateConsumer(),
        Publish(size=0),
        Reset(seq=3),
        PublishMany(messages=(("s.a", 0), ("s.a", 0))),
        Fetch(),
    ],
    "a reset beside a publish": [
        CreateStream(config=_S),
        CreateConsumer(),
        Publish(size=0),
        Reset(seq=1),
    ],
    "a schedule where an increment is missed": [
        CreateStream(config={**_S, "allow_msg_counter": True, "allow_atomic": True}),
        PublishAtomic(messages=(("s.a", 0, {"Nats-Schedule": "@at 2099-01-01T00:00:00Z"}),)),
    ],
    "an ephemeral consumer created again": [
        CreateStream(config=_S),
        CreateConsumer(config={"durable_name": ""}),
        CreateConsumer(config={"durable_name": ""}, action="create"),
    ],
    "controlled flow without heartbeats, of a direct consumer": [
        CreateStream(config=_S),
        CreateConsumer(),
        CreateConsumer(config={"deliver_subject": "push.c", "direct": True, "flow_control": True}),
    ],
    "a direct consumer": [
        CreateStream(config=_S),
        CreateConsumer(config={"deliver_subject": "push.c", "direct": True, "durable_name": ""}),
        ListConsumers(),
    ],
    "the last of no subject": [
        CreateStream(config=_S),
        PublishMany(messages=(("s.a", 0), ("s.b", 0), ("s.a", 0))),
        CreateConsumer(config={"deliver_policy": "last_per_subject", "filter_subject": "s.*.c"}),
    ],
    "a consumer behind a roll-up": [
        CreateStream(config={**_S, "allow_rollup_hdrs": True}),
        CreateConsumer(),
        Publish(size=0),
        Publish(size=0, headers={"Nats-Rollup": "sub"}),
    ],
    "a filter beside none in a work queue": [
        CreateStream(config={**_S, "retention": "workqueue"}),
        CreateConsumer(),
        CreateConsumer(config={"filter_subject": "s.a"}, name="d"),
    ],
    "a batch that is republished": [
        CreateStream(config={**_S, "republish": {"src": "s.>", "dest": "t.>"}, "allow_atomic": True}),
        CreateStream(config=_T, name="T"),
        PublishAtomic(messages=(("s.a", 0, {}),)),
    ],
    "kept by interest beside a consumer of the last of nothing": [
        CreateStream(config=_S),
        CreateConsumer(config={"deliver_policy": "last_per_subject", "filter_subjects": ("s.a", "s.b")}),
        Publish(subject="s.b.c", size=0),
        UpdateStream(config={**_S, "retention": "interest"}),
    ],
    "a purge of nothing behind the last of each subject": [
        CreateStream(config=_S),
        PublishMany(messages=(("s.a", 0), ("s.a", 0), ("s.b", 0), ("s.b", 0))),
        CreateConsumer(config={"deliver_policy": "last_per_subject", "filter_subject": ">"}),
        Purge(filter="t.>"),
    ],
    "an ack of what a limit took": [
        CreateStream(config={**_S, "retention": "interest", "max_msgs": 3}),
        CreateConsumer(config={"max_batch": 1}),
        Publish(),
        Fetch(),
        PublishMany(messages=(("s.a", 0), ("s.a", 0), ("s.a", 0))),
        CreateConsumer(),
        Ack(),
    ],
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with on_stage(tmp_path_factory.mktemp("nats")) as ready:
        yield ready


@pytest.mark.parametrize("program", _FOUND.values(), ids=_FOUND)
def test_once_found(stage: Stage, program: list[Step]) -> None:
    stage.play(program, watched=True)
