"""Much that has expired goes in portions between which others can write; nobody reads of it meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

import pelton
from pelton.engine.engine import Engine
from pelton.engine.salvage import recount
from pelton.streams import StreamLog, log
from pelton.testing import manual_runtime

_OLD = 40


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each portion, whether it has left more."""
    monkeypatch.setattr(log, "_CHUNK", 2)
    left: list[bool] = []
    advance_some = StreamLog.advance_some

    def noted(self: StreamLog, now: int) -> bool:
        is_overdue = self.state.is_overdue(now)
        more = advance_some(self, now)
        left.extend([more] * is_overdue)
        return more

    monkeypatch.setattr(StreamLog, "advance_some", noted)
    return left


@pytest.fixture
async def jet(tmp_path: Path) -> AsyncIterator[pelton.Jet]:
    runtime = manual_runtime()
    async with pelton.open(tmp_path / "s.pelton", runtime=runtime) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_direct=True, max_age=60)
        await jet.create_stream("t", subjects=["t"])
        await jet.publish_batch([(f"s.{n % 2}", b"old") for n in range(_OLD)])
        await (await jet.stream("s")).create_consumer(durable_name="c")
        runtime.clock.advance(61)
        yield jet
    assert recount(str(tmp_path / "s.pelton")) == []


def rows(jet: pelton.Jet) -> int:
    engine = cast(Engine, jet.backend)
    stream = engine.session.registry.stream("s").table.name
    return int(engine.session.db.value(f"SELECT count(*) FROM {stream}"))


async def _messages(jet: pelton.Jet) -> object:
    return (await (await jet.stream("s")).info()).state.messages


async def _last(jet: pelton.Jet) -> object:
    with pytest.raises(pelton.MessageNotFoundError):
        await (await jet.stream("s")).get_last_message("s.1")
    return 0


async def _page(jet: pelton.Jet) -> object:
    return len(await (await jet.stream("s")).get_messages(100))


async def _pulled(jet: pelton.Jet) -> object:
    return len(await (await (await jet.stream("s")).consumer("c")).fetch(100, no_wait=True))


async def _conditional(jet: pelton.Jet) -> object:
    return (await jet.publish("s.1", b"new", expected_last_subject_seq=0)).seq - _OLD - 1


@pytest.mark.parametrize("ask", [_messages, _last, _page, _pulled])
async def test_whoever_reads_waits_and_others_write_meanwhile(
    jet: pelton.Jet, portions: list[bool], ask: Callable[[pelton.Jet], Awaitable[object]]
) -> None:
    asking, published = asyncio.ensure_future(ask(jet)), 0
    while not asking.done():
        published += (await jet.publish("t", b"")).seq > 0
        await asyncio.sleep(0)
    assert await asking == 0
    assert rows(jet) == 0
    assert portions == [True] * (_OLD // 2 - 1) + [False]
    assert published


async def test_a_condition_does_not_see_what_has_expired(jet: pelton.Jet, portions: list[bool]) -> None:
    assert await _conditional(jet) == 0
    assert rows(jet) == 1


async def test_a_plain_publish_leaves_the_rest_to_the_next(jet: pelton.Jet, portions: list[bool]) -> None:
    for number in range(1, 4):
        await jet.publish("s.1", b"new")
        assert rows(jet) == _OLD - 2 * number + number
    assert portions == [True] * 3
    assert await _page(jet) == 3
    assert await _messages(jet) == 3
    assert [message.data for message in await (await (await jet.stream("s")).consumer("c")).fetch(9, no_wait=True)] == [
        b"new"
    ] * 3


async def test_one_that_is_cancelled_leaves_a_consistent_stream(jet: pelton.Jet, portions: list[bool]) -> None:
    asking = asyncio.ensure_future(_messages(jet))
    while len(portions) < 3:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert 0 < rows(jet) < _OLD
    assert await _page(jet) == 0


async def test_a_transaction_sees_nothing_of_it(jet: pelton.Jet, portions: list[bool]) -> None:
    async with jet.transaction() as tx:
        await tx.publish("s.1", b"new")
        assert await _messages(jet) == 1
    assert rows(jet) == 1
