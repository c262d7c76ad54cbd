"""A reload: who was removed is heard no more from that moment on, and who may stay misses nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import msgspec

from pelton.server import Server
from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.server import _RECONSIDERED_AT_ONCE
from tests.server.conftest import Started
from tests.server.raw import PLAIN, raw_client

MANY = 2 * _RECONSIDERED_AT_ONCE + 1


class People:
    """Lets in everybody but those who are gone; ``checked`` is set when slow passwords are."""

    wants_nonce = False

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.checked = asyncio.Event()
        self.checked.set()

    def is_required(self, kind: str = "STANDARD") -> bool:
        return True

    async def user(self, shown: Credentials) -> ServerUser | LoginRefusal:
        found = self.anonymous(shown)
        if shown.user == "slow":
            await self.checked.wait()
        return found

    def anonymous(self, shown: Credentials) -> ServerUser | LoginRefusal:
        return LoginRefusal("gone") if shown.user in self.gone else ServerUser(name=shown.user)


def named(user: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(PLAIN, type=dict) | {"user": user, "pass": "p"}).decode()


def receive(server: Server, user: str, data: bytes) -> None:
    """Hand over what the clients of a user send, at this very moment."""
    for client in server.clients:
        if client.user_name == user:
            client.receive(data)


async def test_nothing_of_a_removed_user_is_accepted(started: Started) -> None:
    people = People()
    server = await started(authenticator=people)
    port = server.endpoints[0].port

    def change() -> None:
        people.gone = {"goes"}
        asyncio.get_running_loop().call_soon(receive, server, "goes", b"SUB x 2\r\nPUB x 2\r\nno\r\n")

    async with AsyncExitStack() as stack:
        stays, slow, *going = [
            await stack.enter_async_context(raw_client(port, named(user)))
            for user in ("stays", "slow", *["goes"] * MANY)
        ]
        stays.sub("x", "1")
        for client in (stays, slow, *going):
            assert await client.settle() == []
        people.checked.clear()
        reloading = asyncio.ensure_future(server.reload(server.settings, change))
        assert [await client.take(2) for client in going] == [["-ERR Authorization Violation", "END"]] * MANY
        # What somebody sends whose password takes its time is carried out afterwards, once.
        slow.pub("x", "then")
        receive(server, "slow", b"PUB x 5\r\nfirst\r\n")
        assert await stays.settle() == []
        people.checked.set()
        await reloading
        assert [await slow.settle(), await stays.settle()] == [[], ["1 x - [] b'first'", "1 x - [] b'then'"]]
