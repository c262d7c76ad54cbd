"""All that a new consumer has to deliver, from servers that are slow to answer."""

from __future__ import annotations

from typing import Any

import pytest

from pelton import Jet
from pelton.api import ServerTimeoutError
from pelton.jet import Consumer, Message
from pelton.jet.consumer import pages_of


async def _consumer(jet: Jet, monkeypatch: pytest.MonkeyPatch, silent: list[bool]) -> Consumer:
    """Return a consumer of three messages; each pull is silent if its flag says so, and all after them."""
    stream = await jet.create_stream("s", subjects=["s"])
    for number in range(3):
        await jet.publish("s", b"%d" % number)
    consumer = await stream.create_consumer(ack_policy="none")
    fetch = consumer.fetch

    async def slow(batch: int, **wanted: Any) -> list[Message]:
        return [] if (silent.pop(0) if silent else True) else await fetch(1, **wanted)

    monkeypatch.setattr(consumer, "fetch", slow)
    return consumer


async def test_what_does_not_come_at_once_is_asked_for_again(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await _consumer(jet, monkeypatch, [True, False, True, False, False])
    assert [message.data async for page in pages_of(consumer) for message in page] == [b"0", b"1", b"2"]


async def test_what_does_not_come_at_all_is_no_end(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = pages_of(await _consumer(jet, monkeypatch, [False]))
    assert [message.data for message in await anext(pages)] == [b"0"]
    with pytest.raises(ServerTimeoutError, match="2 messages of stream 's' did not come"):
        await anext(pages)


async def test_what_is_removed_meanwhile_is_an_end(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = pages_of(await _consumer(jet, monkeypatch, [False]))
    await anext(pages)
    await (await jet.stream("s")).purge()
    assert await anext(pages, None) is None
