"""Damaged rows: reported by name on reading, set aside on delivery, and no obstacle to their neighbours."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import CorruptMessageError, MessageNotFoundError, StoreError
from pelton.engine.salvage import recount
from tests.storage.stores import raw

_FLIPS = {
    "ts": "ts = ts + 1",
    "subject": "subject = 's.b3'",
    "subject, no longer text": "subject = CAST(x'732eef62' AS TEXT)",
    "subject, a number": "subject = CAST(7 AS BLOB)",
    "hdr": "hdr = CAST(replace(hdr, 'one', 'onf') AS BLOB)",
    "hdr, gone": "hdr = NULL",
    "hdr, text": "hdr = CAST(hdr AS TEXT)",
    "data": "data = CAST('pazload-3' AS BLOB)",
    "data, text": "data = CAST(data AS TEXT)",
    "data, a number": "data = 1",
    "data, empty": "data = x''",
    "crc": "crc = crc + 1",
    "crc, a sign": "crc = -crc",
    "crc, a fraction": "crc = crc + 0.5",
    "ts, a text": "ts = 'soon'",
}


async def damaged_store(path: Path, flip: str, *, times: int = 1, **config: Any) -> None:
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"], **config)
        for n in range(1, 6):
            await jet.publish("s.a", b"payload-%d" % n * times, headers={"Is": "one"})
    with raw(path) as connection:
        connection.execute(f"UPDATE m_1 SET {flip} WHERE seq=3")


@pytest.mark.parametrize("flip", _FLIPS.values(), ids=_FLIPS.keys())
async def test_a_flip_in_any_column_is_told_and_set_aside(
    tmp_path: Path, flip: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pelton"
    await damaged_store(path, flip)
    assert "stream 's': message 3 does not match its checksum" in recount(str(path))
    async with pelton.open(path) as jet:
        stream = await jet.stream("s")
        with pytest.raises(CorruptMessageError) as caught:
            await stream.get_message(3)
        assert (caught.value.stream, caught.value.seq, caught.value.path) == ("s", 3, str(path))
        assert str(path) in str(caught.value)
        assert (await stream.get_message(2)).data == b"payload-2"
        assert (await stream.get_last_message("s.a")).seq == 5
        for filters in ({}, {"filter_subject": "s.*"}, {"filter_subject": "s.a"}):
            consumer = await stream.create_consumer(**filters)
            with caplog.at_level(logging.ERROR, "pelton"):
                messages = await consumer.fetch(10)
            assert [message.metadata.stream_seq for message in messages] == [1, 2, 4, 5]
            await consumer.ack(messages)
            assert (await consumer.info()).num_pending == 0
        assert "message 3 of stream 's' is damaged" in caplog.text
        await stream.delete_message(3)
        assert await stream.purge() == 4
        assert (await jet.publish("s.a")).seq == 6


@pytest.mark.parametrize("filter_subject", ["s.*", "s.b"])
@pytest.mark.parametrize("subject", ["t.b", "s.c.d", "s.a"])
async def test_a_message_whose_filter_does_not_know_it_any_more_is_told_of(
    tmp_path: Path, filter_subject: str, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], retention="workqueue")
        await jet.publish_batch([("s.a", b"1"), ("s.a", b"2"), ("s.b", b"3"), ("s.a", b"4")])
        await stream.create_consumer(durable_name="c", filter_subject=filter_subject)
    with raw(path) as connection:
        connection.execute("UPDATE m_1 SET subject=? WHERE seq=3", (subject,))
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream("s")).consumer("c")
        with caplog.at_level(logging.ERROR, "pelton"):
            messages = await consumer.fetch(9, no_wait=True)
        assert [message.metadata.stream_seq for message in messages] == ([1, 2, 4] if filter_subject == "s.*" else [])
    assert "message 3 of stream 's' is damaged" in caplog.text


async def test_a_message_whose_subject_is_no_text_stops_nobody_whose_subjects_take_turns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        await jet.publish_batch([(f"s.{number % 3}", b"") for number in range(30)])
        await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
    with raw(path) as connection:
        connection.execute("UPDATE m_1 SET subject=? WHERE seq=20", (b"s.1",))
    async with pelton.open(path) as jet:
        consumer, got = await (await jet.stream("s")).consumer("c"), list[int]()
        with caplog.at_level(logging.ERROR, "pelton"):
            while messages := await consumer.fetch(9, no_wait=True):
                got += [message.metadata.stream_seq for message in messages]
                await consumer.ack(messages)
    assert sorted(got) == [seq for seq in range(1, 31) if seq != 20]
    assert "message 20 of stream 's' is damaged" in caplog.text


@pytest.mark.parametrize("history", [1, 3])
async def test_a_key_whose_last_revision_is_damaged_has_not_the_one_before(tmp_path: Path, history: int) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        bucket = await jet.create_bucket("b", history=history)
        for value in (b"one", b"two", b"three"):
            await bucket.put("k", value)
    with raw(path) as connection:
        connection.execute("UPDATE m_1 SET subject='$KV.b.j' WHERE seq=3")
    async with pelton.open(path) as jet:
        bucket = await jet.bucket("b")
        assert [key async for key in bucket.keys()] == ["k"]  # noqa: SIM118  # no mapping
        for answer in (bucket.get("k"), bucket.create("k", b"stolen")):
            with pytest.raises(CorruptMessageError):
                await answer
        with pytest.raises(pelton.WrongLastSequenceError) as caught:
            await bucket.update("k", b"stolen", 2)
        assert caught.value.seq == 3
        # It is published again, and nothing damaged displaces it.
        assert await bucket.update("k", b"four", 3) == 4
        assert (await bucket.get("k")).value == b"four"
        for number in range(5, 9):
            assert await bucket.put("k", b"%d" % number) == number
            assert (await bucket.get("k")).value == b"%d" % number
        assert len(await bucket.history("k")) <= history


@pytest.mark.parametrize("flip", _FLIPS.values(), ids=_FLIPS.keys())
async def test_a_flip_in_a_compressed_row_is_told_and_set_aside(tmp_path: Path, flip: str) -> None:
    path = tmp_path / "a.pelton"
    await damaged_store(path, flip, times=100, compression="s2")
    assert "stream 's': message 3 does not match its checksum" in recount(str(path))
    async with pelton.open(path) as jet:
        stream = await jet.stream("s")
        with pytest.raises(CorruptMessageError):
            await stream.get_message(3)
        assert (await stream.get_message(2)).data == b"payload-2" * 100
        messages = await (await stream.create_consumer()).fetch(10)
        assert [message.metadata.stream_seq for message in messages] == [1, 2, 4, 5]
        await stream.delete_message(3)
        assert await stream.purge() == 4


@pytest.mark.parametrize("flip", _FLIPS.values(), ids=_FLIPS.keys())
async def test_exclusive_work_goes_on_past_a_damaged_job(tmp_path: Path, flip: str) -> None:
    path = tmp_path / "a.pelton"
    await damaged_store(path, flip, retention="workqueue")
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream("s")).create_consumer(durable_name="c", max_ack_pending_per_subject=1)
        done = []
        while messages := await consumer.fetch(10, no_wait=True):
            assert len(messages) == 1, "one at a time"
            done.append(messages[0].metadata.stream_seq)
            await messages[0].ack()
        assert done == [1, 2, 4, 5]


async def test_a_message_damaged_while_it_waits_its_turn_or_its_redelivery(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        consumer = await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
        for n in range(1, 6):
            await jet.publish("s.a" if n < 5 else "s.b", b"%d" % n)
        held = await consumer.fetch(10)
        assert [message.metadata.stream_seq for message in held] == [1, 5]
        with raw(path) as connection:
            connection.execute("UPDATE m_1 SET data = CAST('?' AS BLOB) WHERE seq IN (2, 5)")
        await held[0].ack()
        await held[1].nak()
        assert [message.metadata.stream_seq for message in await consumer.fetch(10)] == [3]
        assert (await consumer.info()).num_ack_pending == 1
    contradictions = recount(str(path))
    assert [text for text in contradictions if "checksum" not in text] == []


async def test_a_moved_row_is_found_at_neither_place(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await damaged_store(path, "seq = 13")
    with raw(path) as connection:
        connection.execute("UPDATE stream_state SET last = 20")
    async with pelton.open(path) as jet:
        stream = await jet.stream("s")
        with pytest.raises(MessageNotFoundError):
            await stream.get_message(3)
        with pytest.raises(CorruptMessageError):
            await stream.get_message(13)


@pytest.mark.parametrize("flip", ["subject = CAST(x'73efb861' AS TEXT)", "data = 'text'", "hdr = 7"])
async def test_limits_push_a_damaged_message_out_like_any_other(tmp_path: Path, flip: str) -> None:
    path = tmp_path / "a.pelton"
    await damaged_store(path, flip)
    async with pelton.open(path) as jet:
        await jet.update_stream("s", max_msgs=3)
        assert (await jet.publish("s.a", b"new")).seq == 6
        assert (await (await jet.stream("s")).info()).state.first_seq == 4
    async with pelton.open(path) as jet:
        await jet.publish("s.a", b"new")


async def test_a_damaged_page_is_an_error_and_nothing_worse(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await jet.publish_batch([("s.a", bytes(3000)) for _ in range(500)])
    with path.open("r+b") as file:
        file.seek(4096 * 60)
        file.write(b"\xff" * 4096 * 200)
    assert recount(str(path)) != []
    async with pelton.open(path) as jet:
        with pytest.raises(StoreError):
            await read_all(await jet.stream("s"))


async def read_all(stream: pelton.Stream) -> None:
    for seq in range(1, 501):
        await stream.get_message(seq)
