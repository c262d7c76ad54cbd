"""Random programs: steps with arguments from small pools, so that they often collide."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.differential import pools, steps
from tests.differential import steps_consumers as consuming
from tests.differential import steps_publish as publishing
from tests.differential.pools import FILTERS, HOUR, SIZES, SUBJECTS, Pool
from tests.differential.steps import Step

STREAMS = ("S", "S", "S", "S", "T")
CONSUMERS = ("c", "c", "d")


def some(pool: Pool) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some of these fields, each with one of its values."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in pool.items()})


def few(pool: Pool) -> st.SearchStrategy[dict[str, Any]]:
    """Draw at most three of these many fields, each with one of its values."""
    return st.lists(st.sampled_from(sorted(pool)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(pool[name]) for name in names})
    )


def _subjects(name: str) -> tuple[tuple[str, ...], ...]:
    return (("s.>",), ("s.>",), ("s.*",), ("s.a", "s.b")) if name == "S" else (("t.>",), ("t.a",), ("s.>",))


def stream_configs(name: str) -> st.SearchStrategy[dict[str, Any]]:
    parts = st.tuples(
        st.sampled_from(_subjects(name)),
        st.sampled_from(pools.FLAVOURS if name == "S" else ({},)),
        few(pools.STREAM_POOL if name == "S" else pools.CAPTURING_POOL),
    )
    return parts.map(lambda drawn: {"subjects": drawn[0], **drawn[1], **drawn[2]})


consumer_configs = st.tuples(st.sampled_from(pools.CONSUMER_FLAVOURS), few(pools.CONSUMER_POOL)).map(
    lambda pair: {**pair[0], **pair[1]}
)
message_headers = st.sampled_from(pools.HEADERS).flatmap(some)
feature_headers = st.sampled_from(pools.FEATURE_HEADERS).flatmap(some)

subjects = st.sampled_from(SUBJECTS)
sizes = st.sampled_from(SIZES)
streams = st.sampled_from(STREAMS)
consumers = st.sampled_from(CONSUMERS)
sequences = st.integers(1, 12)
batches = st.sampled_from([1, 2, 3, 10])


def _stream_step(kind: type[Step]) -> st.SearchStrategy[Step]:
    return streams.flatmap(lambda name: st.builds(kind, config=stream_configs(name), name=st.just(name)))


def _of(kind: type[Step], /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    """A step on some consumer."""
    return st.builds(kind, consumer=consumers, stream=streams, **arguments)


publish = st.builds(publishing.Publish, subject=subjects, size=sizes, headers=message_headers)
publish_special = st.builds(
    publishing.Publish,
    subject=subjects,
    size=st.sampled_from([0, 0, 1]),
    headers=st.one_of(feature_headers, some(pools.BATCH_HEADERS), few(pools.FAULTS)),
)
publish_many = st.lists(st.tuples(subjects, sizes), min_size=1, max_size=6).map(
    lambda batch: publishing.PublishMany(messages=tuple(batch))
)
publish_atomic = st.lists(
    st.tuples(
        subjects,
        st.sampled_from([0, 1, 10]),
        st.one_of(st.just({}), message_headers, feature_headers, few(pools.FAULTS)),
    ),
    min_size=1,
    max_size=4,
).map(lambda batch: publishing.PublishAtomic(messages=tuple(batch)))
create_consumer = st.builds(
    consuming.CreateConsumer,
    config=consumer_configs,
    name=consumers,
    stream=streams,
    action=st.sampled_from(["", "", "", "create", "update"]),
)
fetch = _of(
    consuming.Fetch,
    batch=batches,
    asked=st.sampled_from(pools.FETCHES).flatmap(some),
    pin=st.sampled_from(["", "", "", "mine", "wrong"]),
)
ack = _of(
    consuming.Ack,
    kind=st.sampled_from(["ack", "ack", "nak", "term", "progress"]),
    back=st.integers(0, 4),
)
late_nak = _of(consuming.Ack, kind=st.just("nak"), back=st.integers(0, 4), delay_ns=st.just(HOUR))
steer = st.one_of(
    _of(consuming.Pause, until=st.sampled_from(["", "", pools.LATER, pools.EARLIER])),
    _of(consuming.Reset, seq=st.sampled_from([0, 0, 1, 3, 7])),
    _of(consuming.Unpin, group=st.sampled_from(["g", "g", "h", ""])),
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
    st.builds(steps.DirectGet, stream=streams, asked=st.sampled_from(pools.DIRECT).flatmap(some)),
)
looks = st.one_of(
    st.builds(
        steps.LookAtStream,
        name=streams,
        subjects_filter=st.sampled_from(["", *FILTERS]),
        offset=st.integers(0, 2),
        deleted_details=st.booleans(),
    ),
    st.builds(consuming.LookAtConsumer, name=consumers, stream=streams),
    st.builds(steps.ListStreams, subject=st.sampled_from(["", *FILTERS]), offset=st.integers(0, 2)),
    st.builds(consuming.ListConsumers, stream=streams, offset=st.integers(0, 2)),
)

step = st.one_of(
    publish,
    publish,
    publish,
    publish_special,
    publish_many,
    publish_many,
    publish_many,
    publish_atomic,
    create_consumer,
    fetch,
    fetch,
    fetch,
    fetch,
    fetch,
    ack,
    ack,
    ack,
    ack,
    late_nak,
    steer,
    purge,
    st.builds(steps.DeleteMessage, seq=sequences, stream=streams),
    get_message,
    looks,
    _stream_step(steps.UpdateStream),
    _stream_step(steps.CreateStream),
    st.builds(consuming.DeleteConsumer, name=consumers, stream=streams),
    st.builds(steps.DeleteStream, name=streams),
)


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """A stream or two, usually with consumers, and then any steps."""
    first: list[Step] = [steps.CreateStream(config=draw(stream_configs("S")))]
    if draw(st.booleans()):
        first.append(steps.CreateStream(config=draw(stream_configs("T")), name="T"))
    first += [draw(create_consumer) for _ in range(draw(st.integers(0, 3)))]
    return first + [draw(step) for _ in range(draw(st.integers(0, 30)))]
