"""Bad input is refused where it enters, by an error that names its object and tells what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import pytest

import pelton
from tests.kit.nats_server import nats_server


@pytest.fixture(params=["memory", "file", "server"])
async def jet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[pelton.Jet]:
    if request.param == "server":
        with nats_server(tmp_path) as server:
            async with pelton.open(server.url) as jet:
                yield jet
    else:
        async with pelton.open("memory:" if request.param == "memory" else tmp_path / "a.pelton") as jet:
            yield jet


@dataclass
class Car:
    """The value type of a typed bucket."""

    name: str
    doors: int


REFUSED: list[tuple[Callable[[pelton.Jet], Awaitable[object]], str]] = [
    (lambda jet: jet.publish(3, b""), "cannot be published to 3: a subject is text"),
    (lambda jet: jet.publish("s.a", "text"), "publish to 's.a': the payload is str, not bytes: encode text"),
    (lambda jet: jet.publish("s.a", {"a": 1}), "payload is dict, not bytes: encode it first"),
    (lambda jet: jet.publish("s.a", None), "payload is NoneType, not bytes: leave it out"),
    (lambda jet: jet.publish("s.a", b"", headers={"N": 3}), "header N: the value 3 is no text: pass a str"),
    (lambda jet: jet.publish("s.a", b"", headers={"N": [3]}), "header N: the value 3 is no text"),
    (lambda jet: jet.publish("s.a", b"", headers={"N": b"x"}), "header N: the value b'x' is no text"),
    (lambda jet: jet.publish("s.a", b"", headers={3: "x"}), "header name 3 must be"),
    (lambda jet: jet.publish("s.a", b"", headers=3), "headers are 3: give a dict"),
    (lambda jet: jet.publish("s.a", b"", msg_id=3), "publish: msg_id is 3: give text"),
    (lambda jet: jet.publish("s.a", b"", expected_last_seq="x"), "expected_last_seq is 'x': give a whole number"),
    (lambda jet: jet.publish_batch(3), "a batch: messages is 3: give a list of"),
    (lambda jet: jet.publish_batch("s.a"), "a batch: messages is 's.a': give a list of"),
    (lambda jet: jet.publish_batch([("s.a", b""), 3]), "message 1 of the batch is 3: give \\(subject, data\\)"),
    (lambda jet: jet.publish_batch([("s.a",)]), "message 0 of the batch is \\('s.a',\\): give"),
    (lambda jet: jet.publish_batch([("s.a", "x")]), "message 0 of the batch: publish to 's.a': the payload is str"),
    (lambda jet: jet.publish_batch([("s.a", b"", {"N": 3})]), "message 0 of the batch: header N"),
    (lambda jet: jet.publish_atomic([("s.a", b""), "ab"]), "message 1 of the batch is 'ab'"),
    (lambda jet: jet.add("s.a", "x"), "'x' cannot be added to a counter: give an int"),
    (lambda jet: jet.schedule("s.a", target="s.b", delay="x"), "schedule: delay is 'x': give seconds"),
    (lambda jet: jet.schedule("s.a", target="s.b", at=3), "schedule: at is 3: give an aware datetime"),
    (lambda jet: jet.create_stream("t", max_msgs="x"), "stream 't': max_msgs: expected `int`, got `str`"),
    (lambda jet: jet.create_stream("t", max_mgs=1), "stream 't': there is no field 'max_mgs'; did you mean 'max_msgs'"),
    (lambda jet: jet.create_stream(pelton.StreamConfig(name="t", max_msgs="x")), "stream 't': max_msgs: expected"),
    (lambda jet: jet.stream(3), "name: expected `str`, got `int`"),
    (lambda jet: jet.stream_names(3), "subject: expected `str`, got `int`"),
    (lambda jet: jet.create_bucket("t", histroy=3), "bucket 't' has no option 'histroy': did you mean 'history'"),
    (lambda jet: jet.create_bucket("t", ttl="x"), "bucket 't': ttl is 'x': give seconds"),
    (lambda jet: jet.create_bucket("t", replicas="x"), "bucket 't': replicas is 'x': give a whole number"),
    (lambda jet: jet.create_bucket("t", type=3), "bucket 't': type is 3: give a type that JSON can hold"),
    (lambda jet: jet.create_objects("t", tll=3), "object store 't' has no option 'tll': did you mean 'ttl'"),
    (lambda jet: jet.create_objects("t", ttl="x"), "object store 't': ttl is 'x'"),
    (lambda jet: jet.subscribe(3), "subscribe: subject is 3: give text"),
    (lambda jet: jet.lock("l").acquire(timeout="x"), "lock 'l': timeout is 'x': give seconds"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
async def test_a_store_refuses(number: int) -> None:
    ask, text = REFUSED[number]
    async with pelton.open("memory:") as jet:
        await _refused_by(jet, ask, text)


async def test_every_backend_refuses_the_same(jet: pelton.Jet) -> None:
    await jet.create_stream("s", subjects=["s.>"], allow_msg_counter=False)
    for ask, text in REFUSED:
        await _refused_by(jet, ask, text)
    assert (await jet.publish("s.a", b"works")).seq == 1


async def _refused_by(jet: pelton.Jet, ask: Callable[[pelton.Jet], Awaitable[object]], text: str) -> None:
    with pytest.raises(pelton.ConfigError, match=text):
        await ask(jet)


def test_what_cannot_be_a_lock_or_an_election_is_refused_when_it_is_named() -> None:
    async def ask() -> None:
        async with pelton.open("memory:") as jet:
            for call, text in (
                (lambda: jet.lock("l", ttl="x"), "lock 'l': ttl is 'x'"),
                (lambda: jet.semaphore("l", slots="x"), "semaphore 'l': slots is 'x'"),
                (lambda: jet.elect("e", ttl="x"), "election 'e': ttl is 'x'"),
                (lambda: jet.elect("e", on_won=3), "election 'e': on_won is 3: give a function"),
                (lambda: jet.elect("e", tll=3), "election 'e' has no option 'tll': did you mean 'ttl'"),
                (lambda: jet.elect("e", backoff=3), "election 'e': backoff is 3: give a pelton.Backoff"),
                (lambda: jet.transaction(timeout="x"), "transaction: timeout is 'x'"),
            ):
                with pytest.raises(pelton.ConfigError, match=text):
                    call()

    asyncio.run(ask())


async def test_a_subject_that_is_none_is_named_with_what_is_wrong(jet: pelton.Jet) -> None:
    for wrong, fault in (("a..b", "it has an empty token"), ("a b", "it holds white space"), ("a.>.b", "only its")):
        text = f"stream 'o'.* '{wrong}' is not a subject: {fault}.*; put one dot"
        with pytest.raises(pelton.ApiError, match=text) as refused:
            await jet.create_stream("o", subjects=["fine", wrong])
        assert (refused.value.err_code, refused.value.description) == (10052, "invalid subject")
        assert "health" not in str(refused.value)
    stream = await jet.create_stream("o")
    with pytest.raises(pelton.ApiError, match=r"stream 'o'.* 'a..b' is not a subject"):
        await jet.update_stream("o", subjects=["a..b"])
    with pytest.raises(pelton.ApiError) as unwanted:
        await stream.create_consumer(durable_name="c", filter_subject="a..b")
    assert "check the health and" not in str(unwanted.value)
    with pytest.raises(pelton.ApiError, match=r"window can not be larger .*: change the configuration"):
        await jet.create_stream("p", max_age=1, duplicate_window=2)


async def test_durations_of_consumers_and_messages_name_them(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s")
    consumer = await stream.create_consumer(durable_name="c")
    await jet.publish("s", b"1")
    about = "consumer 'c' of stream 's'"
    for ask, text in (
        (lambda: consumer.fetch(timeout="x"), f"{about}: timeout is 'x': give seconds"),
        (lambda: consumer.next(timeout="x"), f"{about}: timeout is 'x': give seconds"),
        (lambda: consumer.fetch("x"), f"{about}: batch is 'x': give a whole number, 1 or more"),
        (lambda: consumer.fetch(0), f"{about}: batch is 0: give a whole number, 1 or more"),
        (lambda: consumer.fetch(group=[]), f"{about}: group is \\[\\]: give text"),
        (lambda: anext(aiter(consumer.messages(prefetch="x"))), f"{about}: prefetch is 'x'"),
        (lambda: consumer.consume(print, max_bytes=5), f"{about}: max_bytes is decided while it is read"),
        (lambda: consumer.consume(3), f"{about}: callback is 3: give a function"),
        (lambda: consumer.pause("soon"), f"{about}: until: 'soon' is no RFC 3339 time"),
        (lambda: consumer.pause(datetime(2030, 1, 1)), f"{about}: until: .* has no time zone"),
        (lambda: consumer.ack([3]), f"{about}: a message is 3: give messages"),
        (lambda: consumer.ack(3), f"{about}: messages is 3: give a list"),
        (lambda: stream.get_message("x"), "stream 's': seq is 'x': give a whole number"),
        (lambda: stream.purge(keep="x"), "stream 's': keep: expected `int`, got `str`"),
        (lambda: stream.get_messages(start_time=3), "stream 's': start_time is 3: give an aware"),
    ):
        with pytest.raises(pelton.ConfigError, match=text):
            await ask()
    (message,) = await consumer.fetch(1, timeout=60)
    with pytest.raises(pelton.ConfigError, match="message 1 of stream 's': delay is 'x': give seconds"):
        await message.nak(delay="x")
    await consumer.ack([message])
    assert (await consumer.pause(datetime(2030, 1, 1, tzinfo=UTC))).paused


async def test_a_typed_bucket_takes_values_of_its_type_alone(jet: pelton.Jet) -> None:
    cars: pelton.Bucket[Any] = await jet.create_bucket("cars", type=Car)
    assert await cars.put("a", Car("a", 3)) == 1
    for wrong in (Car("a", "three"), 3, None, {"name": "a"}, object(), b"{}"):
        for put in (cars.put, cars.create):
            with pytest.raises(pelton.ConfigError, match="bucket 'cars', key 'k': the value is no Car"):
                await put("k", wrong)
        with pytest.raises(pelton.ConfigError, match="the value is no Car"):
            await cars.update("a", wrong, 1)
    numbers: pelton.Bucket[Any] = await jet.bucket("cars", type=dict[str, int])
    with pytest.raises(pelton.ConfigError, match="the value is no dict"):
        await numbers.put("k", {"a": "x"})
    with pytest.raises(pelton.ConfigError, match="the value is no float"):
        await (await jet.bucket("cars", type=float)).put("k", nan)
    with pytest.raises(pelton.ConfigError, match="JSON has no nan"):
        await (await jet.bucket("cars", type=Any)).put("k", {"a": [nan]})
    assert (await cars.get("a")).value == Car("a", 3)
    plain = await jet.bucket("cars")
    with pytest.raises(pelton.ConfigError, match="bucket 'cars', key 'k': the value is str, not bytes"):
        await plain.put("k", "text")
    with pytest.raises(pelton.ConfigError, match="bucket 'cars', key 'a': revision is 'x'"):
        await plain.get("a", revision="x")
    with pytest.raises(pelton.ConfigError, match="bucket 'cars', key 'a': ttl is 'x'"):
        await plain.put("a", b"", ttl="x")


async def test_bytes_in_other_clothes_are_published_as_they_were(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s", allow_direct=True)
    data = bytearray(b"one")
    await jet.publish("s", data)
    await jet.publish_batch([("s", memoryview(b"two"))])
    data[:] = b"xxx"
    assert [message.data for message in await stream.get_messages()] == [b"one", b"two"]


async def test_all_values_of_a_header_go_with_a_message_id(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("s")
    await jet.publish("s", headers={"N": ["1", "2"]})
    again = (await stream.get_message(1)).headers
    await jet.publish("s", headers=again, msg_id="x")
    assert (await stream.get_message(2)).headers.get_all("N") == ["1", "2"]


OPENED = [
    ({"address": ":memory:"}, "write 'memory:' for a store in memory, or './:memory:'"),
    ({"address": "memory"}, "write 'memory:' for a store in memory, or './memory'"),
    ({"address": "file:a.pelton"}, "by its path, not by a URI: write 'a.pelton'"),
    ({"address": "file:a.pelton?mode=ro"}, "by its path, not by a URI: write 'a.pelton'"),
    ({"address": "file:///a"}, "not supported: give a path"),
    ({"address": "http://a"}, "http:// is not supported: give a path"),
    ({"address": ""}, "no file has this name; give a path"),
    ({"address": "a\0"}, "no file has this name; give a path"),
    ({"address": 3}, "give a path, 'memory:'"),
    ({"address": b"a"}, "give a path, 'memory:'"),
    ({"address": None}, "give a path, 'memory:'"),
    ({"address": "memory:", "sync_interval": 1}, "sync_interval is for sync='interval', and sync is 'commit'"),
    ({"address": "memory:", "sync": "off", "sync_interval": 1}, "and sync is 'off': give sync='interval' as well"),
    ({"address": "memory:", "sync": "interval", "sync_interval": "x"}, "'memory:': sync_interval is 'x': give seconds"),
    ({"address": "memory:", "sync": "intervall"}, "sync is 'intervall': choose one of"),
    ({"address": "memory:", "sync": 3}, "sync is 3: choose one of"),
    ({"address": "memory:", "busy_timeout": "x"}, "'memory:': busy_timeout is 'x': give seconds"),
    ({"address": "memory:", "limits": 3}, "open: limits is 3: give a pelton.AccountLimits"),
    ({"address": "memory:", "limits": pelton.AccountLimits(max_streams="x")}, "open: limits: max_streams: expected"),
    ({"address": "memory:", "runtime": 3}, "open: runtime is 3"),
    ({"address": "memory:", "syncc": "off"}, "open has no option 'syncc': did you mean 'sync'"),
]


@pytest.mark.parametrize("number", range(len(OPENED)))
def test_open_refuses(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, text = OPENED[number]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pelton.ConfigError, match=text):
        pelton.open(**options)
    with pytest.raises(pelton.ConfigError, match=text):
        pelton.sync.open(**options)
    assert list(tmp_path.iterdir()) == []
    with pelton.sync.open("./memory") as jet:
        assert jet.stream_names() == []


@pytest.mark.parametrize("value", [None, 3, 1.5, "", "a\0", [], object()])
def test_the_care_of_stores_refuses_what_is_no_path(value: Any, tmp_path: Path) -> None:
    good = str(tmp_path / "a.pelton")
    pelton.sync.open(good).close()
    for call in (
        lambda: pelton.verify(value),
        lambda: pelton.compact(value),
        lambda: pelton.rekey(value, None, "k"),
        lambda: pelton.backup(value, good),
        lambda: pelton.backup(good, value),
        lambda: pelton.restore(value, good),
        lambda: pelton.restore(good, value),
        lambda: pelton.salvage(value, good),
        lambda: pelton.salvage(good, value),
    ):
        with pytest.raises(pelton.ConfigError, match="the path is"):
            call()
    assert pelton.verify(good) == []
    with pytest.raises(pelton.ConfigError, match="backup: streams is 'orders': give a list of names"):
        pelton.backup(good, tmp_path / "b.pelton", streams="orders")
