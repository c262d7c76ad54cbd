"""How a pull handles a last word that comes ahead of the messages, as it does with replicas."""

import asyncio
import json

import pytest

import pelton
from pelton.api import PullRequest
from tests.cluster.fake import FakeServer, fake_server

_NEXT = "$JS.API.CONSUMER.MSG.NEXT.T.C"
_TOO_LARGE = b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: 0\r\n\r\n"
_FOUR = PullRequest(batch=4, max_bytes=100, expires_ns=10**10)


def _deliver(server: FakeServer, inbox: str, *numbers: int) -> None:
    for number in numbers:
        reply = f"$JS.ACK.T.C.1.{number}.{number}.1700000000000000000.{9 - number}"
        server.say(inbox, b"%d" % number, reply, stored_as=f"t.{number}")


async def test_messages_that_come_after_the_last_word_are_awaited() -> None:
    def answer(server: FakeServer, inbox: str, data: bytes) -> None:
        assert json.loads(data)["batch"] == 4
        server.say(inbox, b"", block=_TOO_LARGE % 2)
        # The client has read the last word before the messages leave.
        asyncio.get_running_loop().call_later(0.05, _deliver, server, inbox, 1, 2)

    async with fake_server(answers={_NEXT: answer}) as server, pelton.open(server.url) as jet:
        assert [message.data for message in await jet.backend.pull("T", "C", _FOUR)] == [b"1", b"2"]


async def test_a_last_word_after_all_messages_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(server: FakeServer, inbox: str, data: bytes) -> None:
        _deliver(server, inbox, 1, 2)
        server.say(inbox, b"", block=_TOO_LARGE % 2)

    # A pull that waited for more would not end.
    monkeypatch.setattr("pelton.cluster.pull._LAST_WORD_S", 1e6)
    async with fake_server(answers={_NEXT: answer}) as server, pelton.open(server.url) as jet:
        assert [message.data for message in await jet.backend.pull("T", "C", _FOUR)] == [b"1", b"2"]


async def test_messages_that_never_come_are_not_awaited_for_ever() -> None:
    def answer(server: FakeServer, inbox: str, data: bytes) -> None:
        server.say(inbox, b"", block=_TOO_LARGE % 2)
        _deliver(server, inbox, 1)

    async with fake_server(answers={_NEXT: answer}) as server, pelton.open(server.url) as jet:
        assert [message.data for message in await jet.backend.pull("T", "C", _FOUR)] == [b"1"]


async def test_an_end_without_a_number_is_the_end() -> None:
    def answer(server: FakeServer, inbox: str, data: bytes) -> None:
        _deliver(server, inbox, 1)
        server.say(inbox, b"", block=b"NATS/1.0 404 No Messages\r\n\r\n")

    async with fake_server(answers={_NEXT: answer}) as server, pelton.open(server.url) as jet:
        found = await jet.backend.pull("T", "C", PullRequest(batch=4, no_wait=True))
        assert [message.data for message in found] == [b"1"]
