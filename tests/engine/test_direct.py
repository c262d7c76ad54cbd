"""Direct get in the engine: what the fast read must notice, and how damage is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pelton
from pelton.api import (
    CorruptMessageError,
    DirectGet,
    DirectGetDisabledError,
    DirectReply,
    MessageNotFoundError,
    StoreClosedError,
    StreamNotFoundError,
)
from pelton.connect import Jet
from pelton.engine import Engine
from pelton.testing import manual_runtime
from tests.storage.stores import raw


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pelton"


@pytest.fixture
async def jet(path: Path) -> AsyncIterator[Jet]:
    async with pelton.open(path) as opened:
        stream = await opened.create_stream("S", subjects=["s.*"], allow_direct=True)
        for number in range(1, 6):
            await opened.publish(f"s.{number % 2}", b"%d" % number)
        assert (await stream.get_message(5)).data == b"5"
        yield opened


@pytest.fixture
async def other(path: Path, jet: Jet) -> AsyncIterator[Jet]:
    """Another connection to the same store, as another process would have."""
    async with pelton.open(path) as opened:
        yield opened


async def test_a_lean_read_needs_no_snapshot(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await jet.stream("S")

    def refuse(*_: object) -> None:
        raise AssertionError("looked properly")

    monkeypatch.setattr(Engine, "read", refuse)
    assert (await stream.get_message(3)).data == b"3"
    assert (await stream.get_last_message("s.0")).data == b"4"


async def test_what_another_process_writes_is_seen(jet: Jet, other: Jet) -> None:
    stream = await jet.stream("S")
    await other.publish("s.1", b"6")
    assert (await stream.get_message(6)).data == b"6"
    assert (await stream.get_last_message("s.1")).data == b"6"
    assert [message.seq for message in await stream.get_last_messages("s.*")] == [4, 6]
    await (await other.stream("S")).delete_message(6)
    with pytest.raises(MessageNotFoundError):
        await stream.get_message(6)
    assert (await stream.get_last_message("s.1")).data == b"5"
    await (await other.stream("S")).purge()
    with pytest.raises(MessageNotFoundError):
        await stream.get_last_message("s.1")
    assert await stream.get_messages() == []


async def test_a_stream_that_another_process_deletes_and_makes_anew(jet: Jet, other: Jet) -> None:
    stream = await jet.stream("S")
    await other.delete_stream("S")
    for asked in (stream.get_message(1), stream.get_last_message("s.1"), stream.get_messages()):
        with pytest.raises(StreamNotFoundError):
            await asked
    await other.create_stream("S", subjects=["t"], allow_direct=True)
    await other.publish("t", b"new")
    assert (await stream.get_message(1)).data == b"new"


async def test_a_permission_that_another_process_takes_away(jet: Jet, other: Jet) -> None:
    await other.update_stream("S", allow_direct=False)
    with pytest.raises(DirectGetDisabledError):
        await jet.backend.direct_get("S", DirectGet(seq=1))


async def test_an_age_that_another_process_sets(path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(path, runtime=runtime) as jet, pelton.open(path, runtime=runtime) as other:
        stream = await jet.create_stream("S", subjects=["s"], allow_direct=True)
        await jet.publish("s", b"old")
        assert (await stream.get_message(1)).data == b"old"
        runtime.clock.advance(60)
        await other.update_stream("S", max_age=30, duplicate_window=30)
        with pytest.raises(MessageNotFoundError):
            await stream.get_message(1)


async def test_messages_are_gone_when_their_age_has_come(path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("S", subjects=["s.*"], max_age=10, duplicate_window=1, allow_direct=True)
        await jet.publish("s.1", b"1")
        runtime.clock.advance(6)
        await jet.publish("s.2", b"2")
        assert [message.seq for message in await stream.get_messages()] == [1, 2]
        runtime.clock.advance(4)
        for asked in (stream.get_message(1), stream.get_last_message("s.1"), stream.get_next_message("s.1")):
            with pytest.raises(MessageNotFoundError):
                await asked
        reply = await jet.backend.direct_get("S", DirectGet(seq=1, batch=5))
        assert ([message.seq for message in reply.messages], reply.num_pending) == ([2], 0)
        assert [message.seq for message in await stream.get_last_messages("s.*")] == [2]
        runtime.clock.advance(6)
        assert await stream.get_messages() == await stream.get_last_messages("s.*") == []


async def test_a_damaged_message_ends_a_batch_and_is_told_by_name(jet: Jet, path: Path) -> None:
    stream = await jet.stream("S")
    for flip in ("data = CAST('?' AS BLOB)", "data = 7", "subject = CAST(x'73efb861' AS TEXT)", "hdr = 7"):
        with raw(path) as connection:
            connection.execute(f"UPDATE m_1 SET {flip} WHERE seq=3")
        assert [message.seq for message in await stream.get_messages()] == [1, 2]
        for asked in (stream.get_message(3), stream.get_messages(seq=3)):
            with pytest.raises(CorruptMessageError) as caught:
                await asked
            assert (caught.value.stream, caught.value.seq, caught.value.path) == ("S", 3, str(path))
        assert [message.seq for message in await stream.get_messages(seq=4)] == [4, 5]


async def test_a_damaged_last_message_is_told(jet: Jet, path: Path) -> None:
    stream = await jet.stream("S")
    with raw(path) as connection:
        connection.execute("UPDATE m_1 SET data = CAST('?' AS BLOB) WHERE seq=5")
    with pytest.raises(CorruptMessageError):
        await stream.get_last_message("s.1")
    with pytest.raises(CorruptMessageError):
        await stream.get_last_messages("s.1")
    with pytest.raises(CorruptMessageError):
        await stream.get_last_messages("s.*")
    assert (await stream.get_last_message("s.0")).seq == 4


async def test_a_closed_store(jet: Jet) -> None:
    stream = await jet.stream("S")
    await jet.close()
    for asked in (stream.get_message(1), stream.get_last_message("s.1"), stream.get_messages()):
        with pytest.raises(StoreClosedError):
            await asked


async def test_a_reader_in_a_loop_lets_others_run(jet: Jet) -> None:
    stream = await jet.stream("S")
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(another())
    for _ in range(1000):
        await stream.get_message(1)
    assert turns >= 10
    before = turns
    for _ in range(10):
        await stream.get_messages(1000)
    assert turns >= before + 5
    task.cancel()


async def test_hundreds_of_filters_in_one_question(jet: Jet) -> None:
    stream = await jet.stream("S")
    filters = [f"*.{number}" for number in range(2000)]
    assert [message.seq for message in await stream.get_last_messages(filters)] == [4, 5]


async def test_sequences_beyond_all_bounds(jet: Jet) -> None:
    stream = await jet.stream("S")
    for seq in (1 << 63, 1 << 64, (1 << 63) - 1):
        with pytest.raises(MessageNotFoundError):
            await stream.get_message(seq)
        assert await stream.get_messages(seq=seq) == []
    # As of a sequence that a stream in a file has not reached, a server finds nothing.
    assert await stream.get_last_messages("s.*", up_to_seq=1 << 64) == []


async def test_answers_of_many_parts_are_of_one_moment(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await jet.stream("S")
    await jet.publish_batch([(f"s.{number}", bytes(90)) for number in range(10)])
    monkeypatch.setattr("pelton.streams.reads.MAX_BYTES", 200)
    assert [message.seq for message in await stream.get_messages(seq=6)] == [6, 7, 8]
    asked = jet.backend.direct_get
    parts = 0

    async def meanwhile(name: str, request: DirectGet) -> DirectReply:
        nonlocal parts
        reply = await asked(name, request)
        parts += 1
        await jet.publish("s.9", b"later")
        return reply

    monkeypatch.setattr(jet.backend, "direct_get", meanwhile)
    assert [message.seq for message in await stream.get_last_messages("s.*")] == list(range(6, 16))
    assert parts == 4


async def test_payloads_kept_compressed_are_read_as_they_were(path: Path) -> None:
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("S", subjects=["s"], allow_direct=True, compression="s2")
        for number in (b"1", b"2"):
            await jet.publish("s", number * 5000)
        assert (await stream.get_message(1)).data == b"1" * 5000
        assert (await stream.get_last_message("s")).data == b"2" * 5000
        assert [len(message.data) for message in await stream.get_messages()] == [5000, 5000]
        assert [len(message.data) for message in await stream.get_messages(max_bytes=4000)] == [5000]


@pytest.mark.parametrize("question", ["info", "account_info", "stream_names", "get_message"])
async def test_who_asks_all_the_time_lets_others_run(jet: Jet, question: str) -> None:
    stream, ticks = await jet.stream("S"), list[int]()
    questions = {
        "info": stream.info,
        "account_info": jet.account_info,
        "stream_names": jet.stream_names,
        "get_message": lambda: stream.get_message(1),
    }

    async def tick() -> None:
        while len(ticks) < 3:
            ticks.append(1)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    for _ in range(1000):
        await questions[question]()
        if ticking.done():
            break
    assert len(ticks) == 3
    await ticking
