"""Random programs: steps with arguments out of small pools, so that they meet often."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.differential import steps
from tests.differential.steps import Step

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
SUBJECTS = ("s.a", "s.b", "s.b.c", "t.a")
FILTERS = ("s.a", "s.b", "s.>", "s.*", "s.*.c", ">", "t.>", "nothing")
SIZES = (0, 1, 10, 40)
STREAMS = ("S", "S", "S", "S", "T")
CONSUMERS = ("c", "c", "d")


def some(**optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, each with one of its values."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in optional.items()})


def _subjects(name: str) -> tuple[tuple[str, ...], ...]:
    return (("s.>",), ("s.>",), ("s.*",), ("s.a", "s.b")) if name == "S" else (("t.>",), ("t.a",), ("s.>",))


def stream_configs(name: str) -> st.SearchStrategy[dict[str, Any]]:
    pool = {
        "retention": ("limits", "workqueue", "interest"),
        "discard": ("old", "new"),
        "discard_new_per_subject": (True, False),
        "max_msgs": (1, 3, 8, 0),
        "max_bytes": (60, 150, 400, 0),
        "max_msgs_per_subject": (1, 2, 3, 0),
        "max_msg_size": (30, 10, 0),
        "max_consumers": (1, 2, 0),
        "max_age": (HOUR, 60 * SECOND, 1),
        "duplicate_window": (60 * SECOND, HOUR, 1, 0),
        "description": ("one", "two"),
        "allow_direct": (True, False),
        "deny_delete": (True, False),
        "deny_purge": (True, False),
        "allow_rollup_hdrs": (True, False),
        "first_seq": (5,),
        "subject_transform": ({"src": "s.a", "dest": "s.z"}, {"src": "s.*", "dest": "s.t.{{wildcard(1)}}"}),
        "metadata": ({"a": "b"}, {}),
        "consumer_limits": ({"max_ack_pending": 5}, {"inactive_threshold": 60 * SECOND}, {}),
    }
    few = st.lists(st.sampled_from(sorted(pool)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(pool[name]) for name in names})
    )
    subjects = st.sampled_from(_subjects(name))
    return st.tuples(subjects, few).map(lambda pair: {"subjects": pair[0], **pair[1]})


consumer_pool: dict[str, tuple[Any, ...]] = {
    "deliver_policy": ("all", "last", "new", "by_start_sequence"),
    "opt_start_seq": (1, 3, 7),
    "ack_policy": ("explicit", "all", "none"),
    "ack_wait": (60 * SECOND, HOUR),
    "max_deliver": (1, 2, 5, -1),
    "backoff": ((60 * SECOND,), (60 * SECOND, HOUR)),
    "filter_subject": FILTERS,
    "filter_subjects": (("s.a", "s.b"), ("s.a", "s.b.>"), ("s.>", "s.a"), ("s.*.c",)),
    "max_ack_pending": (1, 2, 5, 1000, -1),
    "max_waiting": (1, 5),
    "inactive_threshold": (60 * SECOND, HOUR),
    "description": ("one", "two"),
    "metadata": ({"a": "b"},),
    "headers_only": (True,),
    "mem_storage": (True,),
    "durable_name": ("",),
    "num_replicas": (1,),
}
consumer_configs = st.lists(st.sampled_from(sorted(consumer_pool)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(consumer_pool[name]) for name in names})
)

asked = some(
    **{
        "Nats-Msg-Id": ("one", "two", "three"),
        "Nats-Expected-Stream": ("S", "S", "T"),
        "Nats-Expected-Last-Sequence": ("0", "1", "2", "3", "x"),
        "Nats-Expected-Last-Subject-Sequence": ("0", "1", "2", "3"),
        "Nats-Expected-Last-Subject-Sequence-Subject": ("s.b", "s.>", "s.*.c"),
        "Nats-Expected-Last-Msg-Id": ("one", "two", ""),
    }
)
message_headers = st.one_of(
    st.just({}),
    st.just({}),
    some(**{"Nats-Msg-Id": ("one", "two", "three")}),
    some(Color=("red", "")),
    some(**{"Nats-Rollup": ("sub", "all", "no")}),
    asked,
)

streams = st.sampled_from(STREAMS)
consumers = st.sampled_from(CONSUMERS)
sequences = st.integers(1, 12)
batches = st.sampled_from([1, 2, 3, 10])


def _stream_step(kind: type[Step]) -> st.SearchStrategy[Step]:
    return streams.flatmap(lambda name: st.builds(kind, config=stream_configs(name), name=st.just(name)))


publish = st.builds(
    steps.Publish, subject=st.sampled_from(SUBJECTS), size=st.sampled_from(SIZES), headers=message_headers
)
publish_many = st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(SIZES)), min_size=1, max_size=6).map(
    lambda batch: steps.PublishMany(messages=tuple(batch))
)
create_consumer = st.builds(
    steps.CreateConsumer,
    config=consumer_configs,
    name=consumers,
    stream=streams,
    action=st.sampled_from(["", "", "", "create", "update"]),
)
fetch = st.builds(
    steps.Fetch,
    batch=batches,
    max_bytes=st.sampled_from([0, 0, 0, 0, 60, 100]),
    consumer=consumers,
    stream=streams,
)
ack = st.builds(
    steps.Ack,
    kind=st.sampled_from(["ack", "ack", "nak", "term", "progress"]),
    back=st.integers(0, 4),
    consumer=consumers,
    stream=streams,
)
late_nak = st.builds(
    steps.Ack, kind=st.just("nak"), back=st.integers(0, 4), delay_ns=st.just(HOUR), consumer=consumers, stream=streams
)
purge = st.builds(
    steps.Purge,
    name=streams,
    filter=st.sampled_from(["", *FILTERS]),
    seq=st.sampled_from([0, 0, 1, 3, 5, 20]),
    keep=st.sampled_from([0, 0, 1, 2]),
)
get_message = st.one_of(
    st.builds(steps.GetMessage, stream=streams, seq=sequences),
    st.builds(steps.GetMessage, stream=streams, last_by_subj=st.sampled_from(FILTERS)),
    st.builds(steps.GetMessage, stream=streams, seq=st.integers(0, 8), next_by_subj=st.sampled_from(FILTERS)),
    st.builds(steps.GetMessage, stream=streams, seq=st.integers(0, 2), last_by_subj=st.sampled_from(FILTERS)),
)
looks = st.one_of(
    st.builds(
        steps.LookAtStream,
        name=streams,
        subjects_filter=st.sampled_from(["", *FILTERS]),
        offset=st.integers(0, 2),
        deleted_details=st.booleans(),
    ),
    st.builds(steps.LookAtConsumer, name=consumers, stream=streams),
    st.builds(steps.ListStreams, subject=st.sampled_from(["", *FILTERS]), offset=st.integers(0, 2)),
    st.builds(steps.ListConsumers, stream=streams, offset=st.integers(0, 2)),
)

step = st.one_of(
    publish,
    publish,
    publish_many,
    publish_many,
    create_consumer,
    fetch,
    fetch,
    fetch,
    ack,
    ack,
    ack,
    late_nak,
    purge,
    st.builds(steps.DeleteMessage, seq=sequences, stream=streams),
    get_message,
    looks,
    _stream_step(steps.UpdateStream),
    _stream_step(steps.CreateStream),
    st.builds(steps.DeleteConsumer, name=consumers, stream=streams),
    st.builds(steps.DeleteStream, name=streams),
)


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """A stream, mostly a consumer, and then anything."""
    first: list[Step] = [steps.CreateStream(config=draw(stream_configs("S")))]
    if draw(st.booleans()):
        first.append(draw(create_consumer))
    return first + [draw(step) for _ in range(draw(st.integers(0, 25)))]
