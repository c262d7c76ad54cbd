"""What a stream stores, what it refuses, and what it considers a duplicate."""

import asyncio

import pytest

import pelton
from pelton.testing import ManualRuntime
from tests.streams.test_config import coded


async def test_sequences_times_and_headers(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    assert await jet.publish("s.a", b"1", headers={"Trace": ["x", "y"]}) == pelton.PubAck("s", 1)
    runtime.clock.advance(1.5)
    assert (await jet.publish("s.b")).seq == 2
    state = (await stream.info()).state
    assert (state.messages, state.num_subjects, state.first_ts, state.last_ts) == (
        2,
        2,
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:21.5Z",
    )
    message = await stream.get_message(1)
    assert (message.subject, message.data, message.time) == ("s.a", b"1", "2023-11-14T22:13:20Z")
    assert pelton.api.headers.decode(message.hdrs).get_all("Trace") == ["x", "y"]


@pytest.mark.parametrize("subject", ["nobody", "s", "S.a"])
async def test_a_subject_that_nobody_takes(jet: pelton.Jet, subject: str) -> None:
    await jet.create_stream("s", subjects=["s.>"])
    with pytest.raises(pelton.NoStreamForSubjectError) as refused:
        await jet.publish(subject)
    assert refused.value.subject == subject


@pytest.mark.parametrize("subject", ["s.", "s..a", "s. a", ".s", "", "s.*", "s.>"])
async def test_what_is_no_subject(jet: pelton.Jet, subject: str) -> None:
    await jet.create_stream("s", subjects=["s.>"])
    with pytest.raises(pelton.ConfigError, match="is not a subject: "):
        await jet.publish(subject)


async def test_max_msg_size_counts_headers(jet: pelton.Jet) -> None:
    await jet.create_stream("s", max_msg_size=5)
    await jet.publish("s", b"12345")
    for publish in (jet.publish("s", b"123456"), jet.publish("s", b"", headers={"A": "b"})):
        with pytest.raises(pelton.MessageTooLargeError) as refused:
            await publish
        assert refused.value.err_code == 10054


async def test_discard_old_drops_the_oldest(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"], max_msgs=3)
    await jet.publish_batch([("s.a", b"%d" % number) for number in range(5)])
    state = (await stream.info()).state
    assert (state.first_seq, state.last_seq, state.messages) == (3, 5, 3)


async def test_a_message_larger_than_the_stream_empties_it(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", max_bytes=100)
    await jet.publish("s")
    assert (await jet.publish("s", b"x" * 200)).seq == 2
    state = (await stream.info()).state
    assert (state.messages, state.bytes, state.first_seq, state.last_seq) == (0, 0, 3, 2)
    assert (await jet.publish("s", b"x" * 69)).seq == 3
    assert (await stream.info()).state.bytes == 100


async def test_bytes_are_counted_in_bytes(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"], max_bytes=3 * 52)
    await jet.publish_batch([("s." + "é" * 10, b"")] * 10)
    state = (await stream.info()).state
    assert (state.messages, state.bytes) == (3, 3 * 52)


async def test_discard_new_refuses_and_says_why(jet: pelton.Jet) -> None:
    await jet.create_stream("m", max_msgs=1, discard="new")
    await jet.create_stream("b", max_bytes=100, discard="new")
    await jet.publish("m")
    await jet.publish("b", b"x" * 69)
    with pytest.raises(pelton.MaxMessagesError) as refused:
        await jet.publish("m")
    assert (refused.value.code, refused.value.err_code, refused.value.description) == (
        503,
        10077,
        "maximum messages exceeded",
    )
    with pytest.raises(pelton.MaxBytesError, match="maximum bytes exceeded"):
        await jet.publish("b")


async def test_discard_new_replaces_within_a_subject_unless_that_is_refused_too(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"], max_msgs=2, max_msgs_per_subject=1, discard="new")
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b"")])
    assert (await stream.info()).state.first_seq == 2
    with pytest.raises(pelton.MaxMessagesError):
        await jet.publish("s.c")
    await jet.update_stream("s", discard_new_per_subject=True)
    with pytest.raises(pelton.MaxMessagesPerSubjectError):
        await jet.publish("s.a")
    await stream.delete_message(2)
    assert (await jet.publish("s.b")).seq == 4


async def test_a_replaced_message_makes_room_for_one_of_its_size(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"], max_bytes=100, max_msgs_per_subject=1, discard="new")
    await jet.publish("s.a", b"x" * 20)
    await jet.publish("s.b", b"x" * 10)
    for size in (21, 60):
        with pytest.raises(pelton.MaxBytesError):
            await jet.publish("s.a", b"x" * size)
    await jet.publish("s.b", b"x" * 5)
    await jet.publish("s.a", b"x" * 20)
    assert (await stream.info()).state.bytes == 91


async def test_what_a_group_replaced_counts_no_more_for_the_rest_of_it(jet: pelton.Jet) -> None:
    await jet.create_stream("s", subjects=["s.>"], max_msgs=3, max_msgs_per_subject=1, discard="new")
    await jet.publish_batch([("s.a", b""), ("s.b", b"")])
    acks = await asyncio.gather(jet.publish("s.a"), jet.publish("s.c"))
    assert [ack.seq for ack in acks] == [3, 4]


async def test_messages_past_their_age_are_seen_by_nobody(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", max_age=10)
    await jet.publish("s", b"old")
    runtime.clock.advance(6)
    await jet.publish("s", b"young")
    assert (await stream.info()).state.messages == 2
    runtime.clock.advance(4)
    state = (await stream.info()).state
    assert (state.messages, state.first_seq) == (1, 2)
    with pytest.raises(pelton.MessageNotFoundError):
        await stream.get_message(1)
    runtime.clock.advance(6)
    with pytest.raises(pelton.MessageNotFoundError):
        await stream.get_last_message("s")
    assert (await jet.account_info()).storage == 0
    assert (await jet.publish("s")).seq == 3


async def test_a_message_id_is_known_for_a_window(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", duplicate_window=10)
    first = await jet.publish("s", msg_id="order-1")
    runtime.clock.advance(9)
    again = await jet.publish("s", b"other", msg_id="order-1")
    assert (again.seq, again.duplicate, first.duplicate) == (1, True, False)
    await stream.delete_message(1)
    assert (await jet.publish("s", msg_id="order-1")).duplicate
    runtime.clock.advance(1)
    assert (await jet.publish("s", msg_id="order-1")).seq == 2


async def test_ids_in_one_group_know_each_other(jet: pelton.Jet) -> None:
    await jet.create_stream("s")
    acks = await asyncio.gather(*(jet.publish("s", msg_id="one") for _ in range(3)))
    assert [(ack.seq, ack.duplicate) for ack in acks] == [(1, False), (1, True), (1, True)]


async def test_a_repeat_is_harmless_whatever_it_expected(jet: pelton.Jet) -> None:
    """Deliberately not as nats-server, which answers 10071 here."""
    await jet.create_stream("s")
    await jet.publish("s", msg_id="a", expected_last_seq=0)
    assert (await jet.publish("s", msg_id="a", expected_last_seq=0)).duplicate


async def test_expected_stream(jet: pelton.Jet) -> None:
    await jet.create_stream("s")
    await jet.publish("s", expected_stream="s")
    with pytest.raises(pelton.ExpectationError) as refused:
        await jet.publish("s", expected_stream="t")
    assert refused.value.err_code == 10060


async def test_expected_last_sequence(jet: pelton.Jet) -> None:
    await jet.create_stream("s")
    await jet.publish("s", expected_last_seq=0)
    for wrong in (0, 2, -1):
        with pytest.raises(pelton.WrongLastSequenceError, match="wrong last sequence: 1") as refused:
            await jet.publish("s", expected_last_seq=wrong)
        assert (refused.value.err_code, refused.value.seq) == (10071, 1)
    with coded(10071):
        await jet.publish("s", headers={"Nats-Expected-Last-Sequence": "abc"})
    assert (await jet.publish("s", headers={"Nats-Expected-Last-Sequence": ""})).seq == 2


async def test_expected_last_sequence_of_a_subject(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish("s.a")
    await jet.publish("s.b")
    await jet.publish("s.a", expected_last_subject_seq=1)
    with pytest.raises(pelton.WrongLastSequenceError) as refused:
        await jet.publish("s.b", expected_last_subject_seq=0)
    assert refused.value.seq == 2
    await jet.publish("s.c", expected_last_subject_seq=0)
    await jet.publish("s.c", expected_last_subject_seq=4, expected_last_subject_seq_subject="s.*")
    with coded(10193):
        await jet.publish("s.c", expected_last_subject_seq_subject="s.a")
    await stream.purge(filter="s.a")
    await jet.publish("s.a", expected_last_subject_seq=0)


async def test_of_concurrent_writers_that_expect_the_same_one_wins(jet: pelton.Jet) -> None:
    await jet.create_stream("s")
    calls = (jet.publish("s", expected_last_subject_seq=0) for _ in range(5))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, pelton.PubAck) for result in results) == 1
    assert sum(isinstance(result, pelton.WrongLastSequenceError) for result in results) == 4


async def test_limits_inside_a_group_count_for_what_the_rest_expects(jet: pelton.Jet) -> None:
    await jet.create_stream("s", subjects=["s.>"], max_msgs=1)
    calls = (jet.publish("s.a"), jet.publish("s.b"), jet.publish("s.a", expected_last_subject_seq=0))
    assert [ack.seq for ack in await asyncio.gather(*calls)] == [1, 2, 3]


async def test_expected_last_message_id(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", duplicate_window=1)
    await jet.publish("s", expected_last_msg_id="")
    await jet.publish("s", msg_id="a")
    runtime.clock.advance(5)
    await jet.publish("s", msg_id="b", expected_last_msg_id="a")
    await stream.purge()
    await jet.publish("s", expected_last_msg_id="b")
    with pytest.raises(pelton.ExpectationError) as refused:
        await jet.publish("s", expected_last_msg_id="b")
    assert refused.value.err_code == 10070


async def test_a_batch_stores_what_came_before_the_first_refusal(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"], max_msg_size=3)
    with pytest.raises(pelton.MessageTooLargeError):
        await jet.publish_batch([("s.a", b"1"), ("s.a", b"2"), ("s.a", b"1234"), ("s.a", b"3")])
    with pytest.raises(pelton.NoStreamForSubjectError):
        await jet.publish_batch([("s.a", b"1"), ("t", b"2"), ("s.a", b"3")])
    assert (await stream.info()).state.messages == 3
    assert await jet.publish_batch([]) == []


async def test_a_batch_goes_to_many_streams_in_order(jet: pelton.Jet) -> None:
    await jet.create_stream("a")
    await jet.create_stream("b")
    acks = await jet.publish_batch([("a", b""), ("b", b"", {"X": "y"}), ("a", b""), ("a", b"", None)])
    assert [(ack.stream, ack.seq) for ack in acks] == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


async def test_a_payload_that_is_none_takes_no_neighbour_down(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s")
    calls = (jet.publish("s", b"1"), jet.publish("s", "text"), jet.publish("s", b"2"))  # type: ignore[arg-type]
    first, wrong, last = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(wrong, Exception)
    assert (first, last) == (pelton.PubAck("s", 1), pelton.PubAck("s", 2))
    assert (await stream.info()).state.messages == 2


async def test_a_cancelled_publish_is_stored_whole_or_not_at_all(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s")
    for turns in range(4):
        task = asyncio.ensure_future(jet.publish("s"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        state = (await stream.info()).state
        assert state.messages == state.last_seq
        assert (await jet.publish("s")).seq == state.last_seq + 1
