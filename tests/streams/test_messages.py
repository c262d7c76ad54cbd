"""Finding and removing messages: get, last, next, delete, purge; an emptied stream keeps its sequence."""

import pytest

import pelton
from tests.streams.test_config import coded


@pytest.fixture
async def stream(jet: pelton.Jet) -> pelton.Stream:
    """1 a, 2 b, 3 a, 4 b, 5 a."""
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish_batch([(f"s.{name}", name.encode()) for name in "ababa"])
    return stream


async def left(stream: pelton.Stream) -> list[int]:
    state = (await stream.info(deleted_details=True)).state
    assert state.num_deleted == len(state.deleted)
    return [seq for seq in range(state.first_seq, state.last_seq + 1) if seq not in state.deleted]


async def test_get(stream: pelton.Stream) -> None:
    assert (await stream.get_message(2)).subject == "s.b"
    with pytest.raises(pelton.MessageNotFoundError) as refused:
        await stream.get_message(6)
    assert (refused.value.code, refused.value.err_code) == (404, 10037)
    with coded(10003):
        await stream.get_message(0)


async def test_last(stream: pelton.Stream) -> None:
    for subject, seq in (("s.a", 5), ("s.b", 4), ("s.*", 5), (">", 5)):
        assert (await stream.get_last_message(subject)).seq == seq
    await stream.delete_message(5)
    assert (await stream.get_last_message("s.a")).seq == 3
    with pytest.raises(pelton.MessageNotFoundError):
        await stream.get_last_message("s.c")


async def test_next(stream: pelton.Stream) -> None:
    assert (await stream.get_next_message("s.b")).seq == 2
    assert (await stream.get_next_message("s.b", 3)).seq == 4
    assert (await stream.get_next_message(">", 5)).seq == 5
    with pytest.raises(pelton.MessageNotFoundError):
        await stream.get_next_message("s.b", 5)


async def test_a_get_that_asks_for_two_things(jet: pelton.Jet, stream: pelton.Stream) -> None:
    with coded(10003):
        await jet.backend.call(pelton.MsgGet(stream="s", seq=1, last_by_subj="s.a"))


async def test_delete(stream: pelton.Stream) -> None:
    await stream.delete_message(1)
    await stream.delete_message(3)
    assert await left(stream) == [2, 4, 5]
    for seq, code in ((1, 10057), (3, 10043), (6, 10057), (0, 10057)):
        with coded(code):
            await stream.delete_message(seq)


@pytest.mark.parametrize(
    ("purge", "kept"),
    [
        ({}, []),
        ({"seq": 3}, [3, 4, 5]),
        ({"seq": 1}, [1, 2, 3, 4, 5]),
        ({"seq": 6}, []),
        ({"keep": 2}, [4, 5]),
        ({"keep": 9}, [1, 2, 3, 4, 5]),
        ({"filter": "s.a"}, [2, 4]),
        ({"filter": "s.*"}, []),
        ({"filter": "nobody"}, [1, 2, 3, 4, 5]),
        ({"filter": "s.a", "keep": 1}, [2, 4, 5]),
        ({"filter": "s.a", "seq": 5}, [2, 4, 5]),
        ({"filter": "s.a", "seq": 99}, [2, 4]),
    ],
)
async def test_purge(jet: pelton.Jet, stream: pelton.Stream, purge: dict[str, object], kept: list[int]) -> None:
    assert await stream.purge(**purge) == 5 - len(kept)  # type: ignore[arg-type]
    assert await left(stream) == kept
    assert (await jet.publish("s.a")).seq == 6
    assert await left(stream) == [*kept, 6]


async def test_a_purge_up_to_a_sequence_to_come_moves_the_next(jet: pelton.Jet, stream: pelton.Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c")
    await consumer.info()
    assert await stream.purge(seq=10) == 5
    state = (await stream.info()).state
    assert (state.first_seq, state.last_seq) == (10, 9)
    assert (await consumer.info()).num_pending == 0
    assert (await jet.publish("s.a")).seq == 10
    assert (await consumer.info()).num_pending == 1


async def test_a_purge_keeps_a_number_or_bounds_a_sequence_not_both(stream: pelton.Stream) -> None:
    with coded(10003):
        await stream.purge(seq=3, keep=1)


async def test_subjects_are_counted(stream: pelton.Stream) -> None:
    assert (await stream.info(subjects_filter="s.a")).state.subjects == {"s.a": 3}
    await stream.purge(filter="s.b")
    info = await stream.info(subjects_filter=">")
    assert (info.state.subjects, info.state.num_subjects, info.total) == ({"s.a": 3}, 1, 1)
