"""Subscriptions: published messages, stored or not, as they come."""

import asyncio

import pytest

import pelton
from tests.kit.nats_server import NatsServer


async def test_what_is_published_is_heard_with_headers(jet: pelton.Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"])
    heard = await jet.backend.subscribe("s.>")  # type: ignore[attr-defined]
    await jet.publish("s.1", b"x", msg_id="one")
    message = await heard.next(5)
    assert (message.subject, message.data) == ("s.1", b"x")
    assert b"Nats-Msg-Id: one" in message.headers
    assert await heard.next(0) is None
    await heard.close()
    await heard.close()
    with pytest.raises(pelton.StoreClosedError):
        await heard.next(1)


async def test_one_of_a_queue_is_told(jet: pelton.Jet) -> None:
    await jet.create_stream("S")
    group = [await jet.backend.subscribe("S", "workers") for _ in range(3)]  # type: ignore[attr-defined]
    await jet.publish_batch([("S", b"%d" % number) for number in range(30)])
    found = []
    while len(found) < 30:
        for member in group:
            while (message := await member.next(0)) is not None:
                found.append(int(message.data))
        await asyncio.sleep(0)
    assert sorted(found) == list(range(30))


async def test_it_outlasts_a_restart(server: NatsServer, jet: pelton.Jet) -> None:
    await jet.create_stream("S")
    heard = await jet.backend.subscribe("S")  # type: ignore[attr-defined]
    waiting = asyncio.ensure_future(heard.next(30))
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await jet.publish("S", b"after")
    message = await waiting
    assert message.data == b"after"


async def test_closing_the_store_ends_it(server: NatsServer) -> None:
    jet = await pelton.open(server.url)
    heard = await jet.backend.subscribe("s")  # type: ignore[attr-defined]
    waiting = asyncio.ensure_future(heard.next())
    await asyncio.sleep(0)
    await jet.close()
    with pytest.raises(pelton.StoreClosedError):
        await waiting


@pytest.mark.parametrize(("subject", "queue"), [("", ""), ("a b", ""), ("a", "b c")])
async def test_what_is_no_filter(jet: pelton.Jet, subject: str, queue: str) -> None:
    with pytest.raises(pelton.ConfigError):
        await jet.backend.subscribe(subject, queue)  # type: ignore[attr-defined]
