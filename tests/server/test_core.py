"""Core NATS with nats-py: subjects, queue groups, requests, and who hears what."""

import asyncio
from typing import Any

import nats.errors
import pytest

from pelton.server import Server, account
from pelton.server.router import ClientSubscription, MessageFrame, WideDelivery
from tests.server.conftest import Connected, settled
from tests.server.raw import PLAIN, raw_client


async def test_publish_and_subscribe(connected: Connected) -> None:
    one, other = await connected(), await connected()
    exact, wild, all_of = await one.subscribe("a.b"), await one.subscribe("a.*"), await one.subscribe("a.>")
    await settled(one)
    await other.publish("a.b", b"hello", headers={"x": "y"})
    for subscription in (exact, wild, all_of):
        message = await subscription.next_msg(5)
        assert (message.subject, message.data, message.headers) == ("a.b", b"hello", {"x": "y"})
    await other.publish("a.b.c", b"deep")
    assert (await all_of.next_msg(5)).data == b"deep"
    assert exact.pending_msgs == wild.pending_msgs == 0


async def test_request_and_reply(connected: Connected) -> None:
    one, other = await connected(), await connected()

    async def answer(message: nats.aio.msg.Msg) -> None:
        await message.respond(message.data.upper())

    await one.subscribe("service", cb=answer)
    await settled(one)
    assert (await other.request("service", b"hi", timeout=60)).data == b"HI"
    assert (await other.request("service", b"hi", timeout=5, old_style=True)).data == b"HI"


async def test_nobody_answers(connected: Connected) -> None:
    client = await connected()
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("nobody", b"", timeout=60)


async def test_one_member_of_a_queue_group_gets_each_message(connected: Connected) -> None:
    one, other = await connected(), await connected()
    members = [await one.subscribe("work", "crew"), await other.subscribe("work", "crew")]
    witness = await one.subscribe("work")
    await settled(one)
    await settled(other)
    for number in range(100):
        await one.publish("work", b"%d" % number)
    for number in range(100):
        assert (await witness.next_msg(5)).data == b"%d" % number
    await settled(one)
    await settled(other)
    counts = [member.pending_msgs for member in members]
    assert sum(counts) == 100
    assert min(counts) > 10


async def test_without_echo(connected: Connected) -> None:
    quiet, other = await connected(no_echo=True), await connected()
    own = await quiet.subscribe("a")
    await settled(quiet)
    await quiet.publish("a", b"mine")
    await settled(quiet)
    await other.publish("a", b"theirs")
    assert (await own.next_msg(5)).data == b"theirs"


async def test_unsubscribe_after_some(connected: Connected) -> None:
    client = await connected()
    subscription = await client.subscribe("a")
    await subscription.unsubscribe(limit=2)
    await settled(client)
    for _ in range(3):
        await client.publish("a")
    await settled(client)
    assert subscription.pending_msgs == 2


async def test_a_payload_that_is_too_large(connected: Connected) -> None:
    client = await connected()
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("a", bytes(client.max_payload + 1))


async def test_many_clients(connected: Connected) -> None:
    clients = await asyncio.gather(*(connected() for _ in range(30)))
    subscriptions = [await client.subscribe("all") for client in clients]
    for client in clients:
        await settled(client)
    await clients[0].publish("all", b"x")
    for subscription in subscriptions:
        assert (await subscription.next_msg(5)).data == b"x"


async def test_a_message_to_very_many_arrives_in_order_while_others_have_their_turn(
    server: Server, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "_AT_ONCE", 2)
    rounds: list[bool] = []
    deliver = WideDelivery.deliver

    def counted(delivery: WideDelivery, most: int) -> bool:
        rounds.append(deliver(delivery, most))
        return rounds[-1]

    monkeypatch.setattr(WideDelivery, "deliver", counted)
    async with raw_client(server.endpoints[0].port) as receiver, raw_client(server.endpoints[0].port) as sender:
        for number in range(9):
            receiver.sub("x", f"{number}")
        assert await receiver.settle() == []
        for text in "ab":
            sender.pub("x", text)
        assert await sender.settle() == []
        assert rounds == 2 * [True, True, True, True, False]
        assert await receiver.settle() == [f"{sid} x - [] {text!r}" for text in (b"a", b"b") for sid in range(9)]


async def test_messages_of_one_packet_arrive_as_each_alone_would(server: Server) -> None:
    """Those that lead to the same clients are delivered together: in order, and only to whom they are for."""
    port, block = server.endpoints[0].port, b"NATS/1.0\r\nA: b\r\n\r\n"
    quiet, old = PLAIN.replace("}", ',"echo":false}'), PLAIN.replace("true", "false")
    sent = [("a.b", "", None), ("a.c", "reply", None), ("a.b", "", block), ("d", "", None), ("a.b", "", None)]
    async with raw_client(port, quiet) as sender, raw_client(port) as ear, raw_client(port, old) as aged:
        for client, subjects in ((sender, [">"]), (ear, ["a.*", "d", "a.c"]), (aged, ["*.*"])):
            for sid, subject in enumerate(subjects):
                client.sub(subject, f"{sid}")
            assert await client.settle() == []
        aged.send("UNSUB 0 6")
        assert await aged.settle() == []
        for _ in range(2):
            for number, (subject, reply, headers) in enumerate(sent):
                sender.pub(subject, f"{number}", reply, headers)
            assert await sender.settle() == []
        heard = ["0 a.b - [] b'0'", "0 a.c reply [] b'1'", "2 a.c reply [] b'1'", "0 a.b - [NATS/1.0|A: b||] b'2'"]
        assert await ear.settle() == 2 * [*heard, "1 d - [] b'3'", "0 a.b - [] b'4'"]
        others = ["0 a.b - [] b'0'", "0 a.c reply [] b'1'", "0 a.b - [] b'2'", "0 a.b - [] b'4'"]
        assert await aged.settle() == [*others, *others[:2]]


def test_a_subscription_that_ends_meanwhile_gets_nothing() -> None:
    class Fake:
        echo = True

        def __init__(self) -> None:
            self.got: list[ClientSubscription] = []
            self.left: set[ClientSubscription] = set()

        def has(self, one: ClientSubscription) -> bool:
            return one in self.left

        def deliver(self, one: ClientSubscription, frame: MessageFrame) -> None:
            self.got.append(one)

    fake: Any = Fake()
    ones = [ClientSubscription(fake, b"%d" % number, "x", "") for number in range(5)]
    fake.left = set(ones)
    delivery = WideDelivery(ones, "x", MessageFrame("x", "", None, b""), fake)
    assert delivery.deliver(2)
    fake.left.remove(ones[3])
    assert not delivery.deliver(3)
    assert fake.got == [*ones[:3], ones[4]]


async def test_what_a_client_may_no_longer_receive(server: Server, connected: Connected) -> None:
    """A subject's way is remembered; permissions that change meanwhile count at once."""
    client, other = await connected(), await connected()
    told = await client.subscribe("a.*")
    await settled(client)
    await other.publish("a.b", b"open")
    assert (await told.next_msg(5)).data == b"open"
    account = server.account("$G")
    assert account is not None
    (subscription,) = account.router.subscriptions("a.b")
    subscription.is_cut = True
    subscription.client.may_receive = lambda *_: False  # type: ignore[method-assign]  # as after a reload
    await other.publish("a.b", b"secret")
    await settled(other)
    await settled(client)
    assert told.pending_msgs == 0
