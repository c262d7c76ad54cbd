"""Pull consumers: creating, changing, listing, deleting them, and where they start."""

from __future__ import annotations

from pelton.api import ConsumerConfig, ConsumerCreate, ConsumerNotFoundError, Duration, consumer_config
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import all_of
from tests.conformance.cases.table import case, lagging, refused


async def _five(jet: Jet) -> Stream:
    """Return a stream of five messages, of ``s.a`` and ``s.b`` in turn."""
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([(f"s.{'ab'[n % 2]}", b"%d" % n) for n in range(5)])
    return stream


async def _delivers(stream: Stream, sequences: list[int], **config: object) -> None:
    consumer = await stream.create_consumer(**config)
    assert [message.metadata.stream_seq for message in await all_of(consumer, len(sequences))] == sequences


@case
async def a_durable_one_is_reported_resolved(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(durable_name="c")
    info = await consumer.info()
    config = info.config
    assert (info.stream_name, info.name, config.durable_name) == ("S", "c", "c")
    assert (config.ack_policy, config.deliver_policy, config.replay_policy) == ("explicit", "all", "instant")
    assert (config.ack_wait, config.max_deliver, config.max_ack_pending) == (Duration(30), -1, 1000)
    assert (config.max_waiting, config.inactive_threshold) == (512, Duration(0))
    assert (info.num_pending, info.num_ack_pending, info.num_redelivered, info.num_waiting) == (5, 0, 0, 0)


@case
async def an_ephemeral_one_gets_a_name_and_a_threshold(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer()
    assert consumer.name
    assert (consumer.config.inactive_threshold, consumer.config.durable_name) == (Duration(5), "")
    assert await stream.consumer_names() == [consumer.name]


@case
async def making_it_again_the_same_is_no_error(jet: Jet) -> None:
    stream = await _five(jet)
    first = await stream.create_consumer(durable_name="c", filter_subject="s.a")
    await first.ack(await first.fetch(1))
    again = await stream.create_consumer(durable_name="c", filter_subject="s.a")
    assert (await again.info()).ack_floor.stream_seq == 1


@case
async def some_fields_can_be_changed(jet: Jet) -> None:
    stream = await _five(jet)
    await stream.create_consumer(durable_name="c")
    changes = {"ack_wait": 5, "max_deliver": 3, "max_ack_pending": 7, "description": "new"}
    changed = await stream.create_consumer(durable_name="c", **changes)
    assert (changed.config.ack_wait, changed.config.max_deliver) == (Duration(5), 3)
    assert ((await changed.info()).config.max_ack_pending, changed.config.description) == (7, "new")


@lagging("a new consumer may be led where what was published has not arrived")
async def others_cannot(jet: Jet) -> None:
    stream = await _five(jet)
    await stream.create_consumer(durable_name="c")
    await refused(10012, stream.create_consumer(durable_name="c", deliver_policy="new"))
    await refused(10012, stream.create_consumer(durable_name="c", ack_policy="all"))
    await refused(10012, stream.create_consumer(durable_name="c", max_waiting=7))
    await refused(10012, stream.create_consumer(durable_name="c", mem_storage=True))


@case
async def a_filter_can_be_changed(jet: Jet) -> None:
    stream = await _five(jet)
    await stream.create_consumer(durable_name="c", filter_subject="s.a")
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.b")
    assert (await consumer.info()).num_pending == 2


@case
async def create_only_refuses_what_is_there(jet: Jet) -> None:
    stream = await _five(jet)
    await stream.create_consumer(durable_name="c")
    other = consumer_config(durable_name="c", ack_wait=7)
    await refused(10148, jet.backend.call(ConsumerCreate(stream_name="S", config=other, action="create")))


@case
async def create_only_takes_an_ephemeral_one_without_a_threshold_for_another(jet: Jet) -> None:
    await _five(jet)
    for threshold, same in ((0, False), (60, True)):
        config = consumer_config(name=f"c{threshold}", inactive_threshold=threshold)
        request = ConsumerCreate(stream_name="S", config=config, action="create")
        await jet.backend.call(request)
        if same:
            assert (await jet.backend.call(request)).name == "c60"
        else:
            await refused(10148, jet.backend.call(request))


@case
async def update_only_refuses_what_is_not_there(jet: Jet) -> None:
    await _five(jet)
    config = ConsumerConfig(durable_name="c")
    await refused(10149, jet.backend.call(ConsumerCreate(stream_name="S", config=config, action="update")))


@case
async def an_unknown_one_is_not_found(jet: Jet) -> None:
    stream = await _five(jet)
    error = await refused(10014, stream.consumer("none"))
    assert isinstance(error, ConsumerNotFoundError)
    await refused(10014, stream.delete_consumer("none"))


@case
async def none_without_its_stream(jet: Jet) -> None:
    stream = await _five(jet)
    await stream.delete()
    await refused(10059, stream.create_consumer(durable_name="c"))
    await refused(10059, stream.consumer("c"))
    await refused(10059, stream.consumer_names())


@case
async def a_deleted_one_is_gone(jet: Jet) -> None:
    stream = await _five(jet)
    for name in ("b", "a"):
        await stream.create_consumer(durable_name=name)
    assert await stream.consumer_names() == ["a", "b"]
    assert (await stream.info()).state.consumer_count == 2
    await stream.delete_consumer("a")
    assert await stream.consumer_names() == ["b"]


@case
async def filters_select_subjects(jet: Jet) -> None:
    stream = await _five(jet)
    await _delivers(stream, [2, 4], filter_subject="s.b")
    await _delivers(stream, [1, 2, 3, 4, 5], filter_subject="s.*")
    await _delivers(stream, [], filter_subject="s.c")


@case
async def several_filters_select_their_union(jet: Jet) -> None:
    stream = await _five(jet)
    await jet.publish("s.c.d")
    await _delivers(stream, [2, 4, 6], filter_subjects=["s.b", "s.c.>"])


@case
async def filters_must_not_overlap_or_be_empty(jet: Jet) -> None:
    stream = await _five(jet)
    await refused(10138, stream.create_consumer(filter_subjects=["s.*", "s.a"]))
    await refused(10139, stream.create_consumer(filter_subjects=["s.a", ""]))
    await refused(10136, stream.create_consumer(filter_subject="s.a", filter_subjects=["s.b"]))


@lagging("a new consumer may be led where what was published has not arrived")
async def deliver_last(jet: Jet) -> None:
    stream = await _five(jet)
    await _delivers(stream, [5], deliver_policy="last")
    await _delivers(stream, [4], deliver_policy="last", filter_subject="s.b")


@lagging("a new consumer may be led where what was published has not arrived")
async def deliver_new(jet: Jet) -> None:
    stream = await _five(jet)
    consumer = await stream.create_consumer(deliver_policy="new")
    assert (await consumer.info()).num_pending == 0
    await jet.publish("s.a")
    assert [message.metadata.stream_seq for message in await consumer.fetch(5, timeout=2)] == [6]


@case
async def deliver_from_a_sequence(jet: Jet) -> None:
    stream = await _five(jet)
    await _delivers(stream, [3, 4, 5], deliver_policy="by_start_sequence", opt_start_seq=3)
    await _delivers(stream, [], deliver_policy="by_start_sequence", opt_start_seq=9)


@case
async def deliver_from_a_time(jet: Jet) -> None:
    stream = await _five(jet)
    times = [(await stream.get_message(seq)).time for seq in (1, 4)]
    await _delivers(stream, [1, 2, 3, 4, 5], deliver_policy="by_start_time", opt_start_time=times[0])
    # The messages of a batch may have the same timestamp.
    later = await stream.create_consumer(deliver_policy="by_start_time", opt_start_time=times[1])
    assert 4 in [message.metadata.stream_seq for message in await all_of(later, 2)]


@lagging("a new consumer may be led where what was published has not arrived")
async def a_start_needs_its_policy(jet: Jet) -> None:
    stream = await _five(jet)
    await refused(10094, stream.create_consumer(deliver_policy="by_start_sequence"))
    await refused(10094, stream.create_consumer(deliver_policy="by_start_time"))
    await refused(10094, stream.create_consumer(opt_start_seq=2))
    await refused(10094, stream.create_consumer(deliver_policy="new", opt_start_time="2024-01-01T00:00:00Z"))


@case
async def a_work_queue_takes_explicit_acks_from_the_beginning(jet: Jet) -> None:
    stream = await jet.create_stream("W", subjects=["w.>"], retention="workqueue")
    await refused(10084, stream.create_consumer(durable_name="c", ack_policy="none"))
    await refused(10098, stream.create_consumer(durable_name="c", ack_policy="all"))
    await refused(10101, stream.create_consumer(durable_name="c", deliver_policy="new"))


@case
async def a_work_queue_has_one_consumer_a_message(jet: Jet) -> None:
    stream = await jet.create_stream("W", subjects=["w.>"], retention="workqueue")
    await stream.create_consumer(durable_name="a", filter_subject="w.a.*")
    await stream.create_consumer(durable_name="b", filter_subject="w.b.*")
    await refused(10100, stream.create_consumer(durable_name="c", filter_subject="w.*.x"))
    await refused(10099, stream.create_consumer(durable_name="d"))
    other = await jet.create_stream("U", subjects=["u.>"], retention="workqueue")
    await other.create_consumer(durable_name="c")
    await refused(10100, other.create_consumer(durable_name="d", filter_subject="u.a"))


@case
async def a_name_and_another_durable_name_are_refused(jet: Jet) -> None:
    stream = await _five(jet)
    await refused(10017, stream.create_consumer(durable_name="a", name="b"))


@case
async def a_malformed_filter_is_refused(jet: Jet) -> None:
    stream = await _five(jet)
    for subject in ("s..x", "s.>.x"):
        await refused(10052, stream.create_consumer(durable_name="c", filter_subject=subject))
        await refused(10052, stream.create_consumer(durable_name="c", filter_subjects=[subject]))


@case
async def a_description_has_a_limit(jet: Jet) -> None:
    stream = await _five(jet)
    await stream.create_consumer(durable_name="c", description="x" * 4096)
    await refused(10107, stream.create_consumer(durable_name="d", description="x" * 4097))


@case
async def numbers_below_none_mean_none(jet: Jet) -> None:
    stream = await _five(jet)
    config = (await stream.create_consumer(max_deliver=-5, max_ack_pending=-3, max_waiting=-1)).config
    assert (config.max_deliver, config.max_ack_pending, config.max_waiting) == (-1, -1, 512)


@case
async def more_retries_than_deliveries_are_refused(jet: Jet) -> None:
    stream = await _five(jet)
    await refused(10116, stream.create_consumer(durable_name="c", backoff=[1, 2, 3], max_deliver=2))


@lagging("a new consumer may be led where what was published has not arrived")
async def an_unused_ephemeral_one_vanishes(jet: Jet) -> None:
    stream = await _five(jet)
    idle = await stream.create_consumer(inactive_threshold=0.1)
    other = await stream.create_consumer(deliver_policy="new")
    for _ in range(20):
        if await stream.consumer_names() == [other.name]:
            break
        assert await other.fetch(1, timeout=0.3) == []
    await refused(10014, idle.info())
    assert await stream.consumer_names() == [other.name]


@case
async def one_filter_or_several_but_not_both(jet: Jet) -> None:
    stream = await _five(jet)
    both = {"filter_subject": "s.a", "filter_subjects": ["s.b", "s.c"]}
    await refused(10136, stream.create_consumer(durable_name="c", **both))


@case
async def what_is_to_be_updated_has_to_be_there(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], retention="workqueue")
    config = consumer_config(durable_name="c", deliver_policy="new")
    await refused(10149, jet.backend.call(ConsumerCreate(stream_name="S", config=config, action="update")))


@case
async def a_name_has_its_limit(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await refused(10102, stream.create_consumer(durable_name="c" * 256))
