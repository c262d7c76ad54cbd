"""Valid stream configurations and changes, and the NATS error codes of the others."""

from datetime import timedelta
from typing import Any

import pytest

import pelton


def coded(code: int) -> Any:
    """Expect the ApiError with this err_code."""
    return pytest.raises(pelton.ApiError, check=lambda error: error.err_code == code)


async def test_every_choice_left_open_is_made_and_reported(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("orders")
    info = await stream.info()
    assert info.config.subjects == ("orders",)
    assert (info.config.max_msgs, info.config.max_bytes, info.config.max_msgs_per_subject) == (-1, -1, -1)
    assert info.config.duplicate_window == 120
    assert (info.state.first_seq, info.state.last_seq, info.state.messages) == (0, 0, 0)


async def test_the_duplicate_window_is_no_longer_than_messages_live(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", max_age=timedelta(minutes=1))
    assert stream.config.duplicate_window == 60


async def test_the_same_stream_again_is_the_one_there_is_another_is_refused(jet: pelton.Jet) -> None:
    await jet.create_stream("s", subjects=["s.>"])
    await jet.publish("s.1")
    again = await jet.create_stream("s", subjects=["s.>"])
    assert (await again.info()).state.messages == 1
    with coded(10058):
        await jet.create_stream("s", subjects=["s.>"], max_msgs=3)


@pytest.mark.parametrize("mine", ["a.*", "a.>", "a.b"])
async def test_no_two_streams_take_one_subject(jet: pelton.Jet, mine: str) -> None:
    await jet.create_stream("first", subjects=["a.b", "c"])
    with coded(10065):
        await jet.create_stream("second", subjects=["x", mine])
    second = await jet.create_stream("second", subjects=["x"])
    with coded(10065):
        await jet.update_stream("second", subjects=["x", mine])
    assert (await second.info()).config.subjects == ("x",)


@pytest.mark.parametrize(
    "config",
    [
        {"subjects": ["a..b"]},
        {"subjects": ["a b"]},
        {"subjects": ["a", "a"]},
        {"subjects": ["a.*", "a.b"]},
        {"subjects": [">"]},
        {"subjects": ["$JS.API.>"]},
        {"max_age": 0.05},
        {"duplicate_window": 0.05},
        {"max_age": 1, "duplicate_window": 2},
        {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
        {"discard_new_per_subject": True, "discard": "new"},
    ],
)
async def test_a_configuration_that_contradicts_itself_is_refused(jet: pelton.Jet, config: dict[str, Any]) -> None:
    with coded(10052):
        await jet.create_stream("s", **config)
    assert await jet.stream_names() == []


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", ">", "a/b", "a\\b", "a\n"])
async def test_a_name_that_is_none(jet: pelton.Jet, name: str) -> None:
    with pytest.raises(pelton.ConfigError, match="cannot name a stream"):
        await jet.create_stream(name)


@pytest.mark.parametrize(("name", "code"), [("a/b", 10128), ("x" * 256, 10052)])
async def test_a_name_that_is_none_in_a_struct(jet: pelton.Jet, name: str, code: int) -> None:
    with coded(code):
        await jet.create_stream(pelton.StreamConfig(name=name, subjects=("a",)))


@pytest.mark.parametrize("name", ["a.b", "", "a b", "a\ud800"])
async def test_a_name_in_a_struct_that_is_no_token(jet: pelton.Jet, name: str) -> None:
    with pytest.raises(pelton.ConfigError, match="cannot name a stream"):
        await jet.create_stream(pelton.StreamConfig(name=name, subjects=("a",)))


@pytest.mark.parametrize(
    "config",
    [
        {"num_replicas": 3},
        {
            "sources": [
                {
                    "name": "other",
                    "external": {"api": "$JS.hub.API"},
                    "consumer": {"name": "c", "deliver_subject": "d"},
                }
            ]
        },
        {"max_mgs": 1},
        {"max_msgs": "many"},
        {"max_age": -1},
    ],
)
async def test_what_is_not_supported_or_misspelt_is_refused_by_name(jet: pelton.Jet, config: dict[str, Any]) -> None:
    with pytest.raises(pelton.ConfigError, match=next(iter(config)).removesuffix("s")):
        await jet.create_stream("s", **config)


async def test_an_update_changes_what_it_names(jet: pelton.Jet) -> None:
    await jet.create_stream("s", subjects=["s.>"], description="old", max_msgs=5)
    stream = await jet.update_stream("s", subjects=["s.>", "t"], description="new")
    assert (stream.config.description, stream.config.max_msgs) == ("new", 5)
    assert (await jet.publish("t")).stream == "s"
    await jet.update_stream("s", subjects=["s.>"])
    with pytest.raises(pelton.NoStreamForSubjectError):
        await jet.publish("t")


@pytest.mark.parametrize("change", [{"retention": "workqueue"}, {"storage": "memory"}])
async def test_an_update_that_cannot_be(jet: pelton.Jet, change: dict[str, Any]) -> None:
    await jet.create_stream("s")
    with coded(10052):
        await jet.update_stream("s", **change)


async def test_lowered_limits_apply_at_once(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    for index in range(10):
        await jet.publish(f"s.{index % 2}", b"x" * 10)
    await jet.update_stream("s", max_msgs_per_subject=3)
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.0": 3, "s.1": 3}
    await jet.update_stream("s", max_msgs=4)
    assert (await stream.info()).state.first_seq == 7
    await jet.update_stream("s", max_bytes=100)
    assert (await stream.info()).state.messages == 2
    await jet.update_stream("s", max_msgs=-1, max_bytes=-1, max_msgs_per_subject=-1)
    await jet.publish_batch([("s.1", b"")] * 20)
    assert (await stream.info()).state.messages == 22


async def test_streams_are_found_by_name_and_by_subject(jet: pelton.Jet) -> None:
    await jet.create_stream("b", subjects=["b.>"])
    await jet.create_stream("a", subjects=["a.*"])
    assert await jet.stream_names() == ["a", "b"]
    assert await jet.stream_names("a.1") == ["a"]
    assert await jet.stream_names("b.*") == ["b"]
    assert await jet.stream_names("c") == []
    await jet.publish("a.1", b"123")
    account = await jet.account_info()
    assert (account.streams, account.consumers, account.storage) == (2, 0, 30 + 3 + 3)


async def test_a_deleted_stream_is_gone_with_all_it_had(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s")
    await stream.create_consumer(durable_name="c")
    await jet.publish("s", msg_id="1")
    await stream.delete()
    for call in (
        stream.info(),
        jet.stream("s"),
        stream.delete(),
        stream.purge(),
        jet.update_stream("s"),
        stream.consumer("c"),
    ):
        with pytest.raises(pelton.StreamNotFoundError):
            await call
    with pytest.raises(pelton.NoStreamForSubjectError):
        await jet.publish("s")
    again = await jet.create_stream("s")
    assert (await jet.publish("s", msg_id="1")).seq == 1
    assert await again.consumer_names() == []
