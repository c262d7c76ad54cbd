"""A damaged configuration: told by name, no obstacle to other streams, and repaired or replaced by salvage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import pelton
from pelton.api import CorruptConfigError
from tests.storage.stores import raw

Change = Callable[[bytes], bytes]


def _flip(place: int) -> Change:
    return lambda config: config[:place] + bytes([config[place] ^ 16]) + config[place + 1 :]


_CHANGES: dict[str, Change] = {
    "no JSON": _flip(0),
    "no text": lambda config: b"\xff".join((config[:5], config[6:])),
    "other JSON": lambda config: config.replace(b'"max_msgs":100', b'"max_msgs":900'),
    "the sum": _flip(-3),
}
_TWO_BYTES: Change = lambda config: _flip(40)(_flip(20)(config))  # noqa: E731


async def _store(path: Path, retention: str = "limits") -> None:
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], max_msgs=100, retention=retention)
        for name in ("c", "d"):
            await stream.create_consumer(durable_name=name, filter_subject=f"s.{name}", ack_wait=100)
        await jet.create_stream("other")
        await jet.publish_batch([("s.c", b"1"), ("s.d", b"2"), ("other", b"3")])


def _change(path: Path, table: str, change: Change, *ids: int) -> None:
    with raw(path) as connection:
        for number in ids or (1,):
            [(found,)] = connection.execute(f"SELECT config FROM {table} WHERE id=?", (number,)).fetchall()
            assert change(found) != found
            connection.execute(f"UPDATE {table} SET config=? WHERE id=?", (change(found), number))


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
async def test_a_damaged_stream_is_named_and_others_are_used(
    tmp_path: Path, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await _store(path)
    _change(path, "streams", change)
    assert pelton.verify(path) == ["stream 's': its configuration is damaged"]
    caplog.clear()
    with caplog.at_level(logging.ERROR, "pelton"):
        async with pelton.open(path) as jet:
            for refused in (jet.stream("s"), jet.create_stream("s"), jet.delete_stream("s")):
                with pytest.raises(CorruptConfigError, match=r"stream 's'.*pelton\.salvage") as caught:
                    await refused
            assert (caught.value.stream, caught.value.consumer, caught.value.path) == ("s", "", str(path))
            assert await jet.stream_names() == ["other"]
            assert (await jet.publish("other")).seq == 2
            await jet.create_stream("new")
    assert caplog.text.count("stream 's'") == 1
    assert pelton.salvage(path, saved) == ["stream 's': its configuration was damaged, and is repaired"]
    assert pelton.verify(saved) == []
    async with pelton.open(saved) as jet:
        stream = await jet.stream("s")
        assert stream.config.max_msgs == 100
        assert [message.data for message in await (await stream.consumer("c")).fetch(9, no_wait=True)] == [b"1"]
        assert (await jet.publish("s.c")).seq == 3


async def test_a_stream_whose_configuration_is_lost_keeps_its_messages(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await _store(path)
    _change(path, "streams", _TWO_BYTES)
    (lost,) = pelton.salvage(path, saved)
    assert lost.startswith("stream 's': its configuration was damaged, and is lost")
    assert pelton.verify(saved) == []
    async with pelton.open(saved) as jet:
        await jet.update_stream("s", subjects=["s.>"])
        assert (await jet.publish("s.c")).seq == 3
        stream = await jet.stream("s")
        assert (await stream.get_message(1)).data == b"1"
        assert (await (await stream.consumer("d")).info()).num_pending == 1


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_a_damaged_consumer_is_named(tmp_path: Path, retention: str, change: Change) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await _store(path, retention)
    _change(path, "consumers", lambda config: change(config.replace(b'"ack_wait":100', b'"max_msgs":100')))
    assert pelton.verify(path)[0] == "stream 's', consumer 'c': its configuration is damaged"
    async with pelton.open(path) as jet:
        assert (await jet.publish("other")).seq == 2
        if retention == "interest":
            # What its consumer wants is unknown, so nothing may be removed.
            with pytest.raises(CorruptConfigError, match="consumer 'c'"):
                await jet.stream("s")
        else:
            stream = await jet.stream("s")
            for refused in (stream.consumer("c"), stream.create_consumer(durable_name="c")):
                with pytest.raises(CorruptConfigError, match="consumer 'c'"):
                    await refused
            assert [message.data for message in await (await stream.consumer("d")).fetch(9, no_wait=True)] == [b"2"]
            if retention == "workqueue":
                with pytest.raises(CorruptConfigError, match="consumer 'c'"):
                    await stream.create_consumer(durable_name="e", filter_subject="s.c")
    pelton.salvage(path, saved)
    assert pelton.verify(saved) == []


async def test_messages_of_lost_consumers_are_kept_without_them(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await _store(path, "interest")
    _change(path, "consumers", _TWO_BYTES, 1, 2)
    async with pelton.open(path) as jet:
        assert await jet.stream_names() == ["other"]
    assert any("retention is limits now" in lost for lost in pelton.salvage(path, saved))
    assert pelton.verify(saved) == []
    async with pelton.open(saved) as jet:
        stream = await jet.stream("s")
        await stream.create_consumer(durable_name="c")
        await jet.update_stream("s", retention="interest")
        assert (await (await jet.stream("s")).info()).state.messages == 2


async def test_a_consumer_whose_configuration_is_lost_is_left_out(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await _store(path, "workqueue")
    _change(path, "consumers", _TWO_BYTES)
    (lost,) = pelton.salvage(path, saved)
    assert lost == "consumer s/c: its configuration was damaged, and it is left out: create it again"
    assert pelton.verify(saved) == []
    async with pelton.open(saved) as jet:
        consumer = await (await jet.stream("s")).create_consumer(durable_name="c", filter_subject="s.c")
        assert [message.data for message in await consumer.fetch(9, no_wait=True)] == [b"1"]
