"""A client with very many subscriptions leaves: they end some at a time, and nobody finds those that are left."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from pelton.server import Server, account, clients
from pelton.server.connection import ClientConnection
from pelton.server.identity import Permissions, ServerUser, SubjectRules
from pelton.server.observed import ReportParameters, own_subscriptions, subsz
from pelton.server.router import _ENDED_AT_ONCE, ClientSubscription, Router
from tests.server.conftest import Started
from tests.server.raw import PLAIN, RawClient, raw_client

MANY = 3 * _ENDED_AT_ONCE + 1


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[ClientSubscription]:
    """The subscriptions that have ended."""
    found: list[ClientSubscription] = []
    remove = Router.remove

    def noted(router: Router, one: ClientSubscription) -> None:
        remove(router, one)
        found.append(one)

    monkeypatch.setattr(Router, "remove", noted)
    return found


async def subscribed(client: RawClient, subject: str, queue: str = "") -> None:
    """Subscribe to one subject, and then to very many others."""
    client.send(f"SUB {subject} {queue} first")
    client.send("\r\n".join(f"SUB many.{number} {number}" for number in range(MANY)))
    # One that has not introduced itself is told of each.
    assert {*await client.settle()} <= {"OkLine"}


def of(server: Server, number: int) -> ClientConnection:
    (found,) = [one for one in server.clients if one.number == number]
    return found


async def counted(server: Server) -> int:
    """How many subscriptions of clients the reports tell of."""
    found = await subsz(server, ReportParameters({}))
    assert found["num_inserts"] - found["num_removes"] == found["num_subscriptions"]
    return int(found["num_subscriptions"]) - sum(own_subscriptions(server, one) for one in server.accounts.values())


async def test_others_have_their_turn(server: Server, removed: list[ClientSubscription]) -> None:
    port = server.endpoints[0].port
    async with raw_client(port) as one, raw_client(port) as other:
        for client in (one, other):
            await subscribed(client, "x")
        assert await counted(server) == 2 * MANY + 2
        for held in server.clients:
            held.cut("gone")
        rounds = []
        while (before := len(removed)) < 2 * MANY + 2:
            await asyncio.sleep(0)
            rounds.append(len(removed) - before)
            assert await counted(server) == 0
        assert max(rounds) <= 2 * _ENDED_AT_ONCE
    assert not server.clients


async def test_nobody_finds_what_has_not_ended_yet(server: Server, removed: list[ClientSubscription]) -> None:
    port = server.endpoints[0].port
    async with raw_client(port) as leaving, raw_client(port) as there, raw_client(port) as asking:
        await subscribed(leaving, "group", "q")
        leaving.send("SUB plain second")
        await leaving.settle()
        there.sub("group", "1", "q")
        await there.settle()
        asking.sub("in", "1")
        asking.pub("plain", "remembered")
        await asking.settle()
        of(server, 1).cut("gone")
        assert "first" not in {one.sid.decode() for one in removed}
        # Handed over here, so that it comes before the rest of them has ended.
        of(server, 3).receive(b"PUB group 1\r\nx\r\n" * 20 + b"PUB plain in 1\r\nx\r\n")
        assert len(removed) < MANY
        assert await there.settle() == 20 * ["1 group - [] b'x'"]
        (told,) = await asking.settle()
        assert "503" in told


async def test_the_server_ends_meanwhile(started: Started, removed: list[ClientSubscription]) -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        await subscribed(client, "x")
        of(server, 1).cut("gone")
        await server.close()
    before = len(removed)
    for _ in range(MANY // _ENDED_AT_ONCE + 1):
        await asyncio.sleep(0)
    assert len(removed) == before
    assert not failed


async def test_an_account_that_gets_another_store_meanwhile(server: Server, removed: list[ClientSubscription]) -> None:
    """The new store is told some at a time, and of those that leave meanwhile nothing is left there."""
    async with raw_client(server.endpoints[0].port) as leaving, raw_client(server.endpoints[0].port) as there:
        for client, first in ((leaving, "x"), (there, "y")):
            await subscribed(client, first)
        told, reloading = [0], await _given_a_store(server)
        of(server, 1).cut("gone")
        while not reloading.done():
            told.append(_told(server).total())
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(told)) <= account._INTRODUCED_AT_ONCE
        while len(removed) < MANY + 1:
            await asyncio.sleep(0)
        assert _told(server) == {"y": 1, **{f"many.{number}": 1 for number in range(MANY)}}


async def test_what_changes_while_a_store_is_told(server: Server) -> None:
    async with raw_client(server.endpoints[0].port) as client:
        await subscribed(client, "x")
        reloading = await _given_a_store(server)
        while not _told(server):
            await asyncio.sleep(0)
        # The first one is known by now, the last one is not.
        assert _told(server).total() < MANY
        of(server, 1).receive(b"UNSUB first\r\nUNSUB %d\r\nSUB new n\r\n" % (MANY - 1))
        await reloading
        assert _told(server) == {"new": 1, **{f"many.{number}": 1 for number in range(MANY - 1)}}


async def _given_a_store(server: Server) -> asyncio.Future[None]:
    """Return a reload that has just given the global account its store, which it had not."""
    settings = server.settings
    await server.reload(replace(settings, stores={}))
    reloading = asyncio.ensure_future(server.reload(settings))
    while (found := server.account("$G")) is None or found.link is None:
        await asyncio.sleep(0)
    return reloading


def _told(server: Server) -> Counter[str]:
    """What the store of the global account knows of."""
    found = server.account("$G")
    assert found is not None
    assert found.link is not None
    return found.link.interest._plain


async def test_a_client_that_changes_its_account(started: Started, removed: list[ClientSubscription]) -> None:
    """Who may do everything before it introduces itself, leaves that account with it."""

    class Introduced:
        wants_nonce = False

        def is_required(self, kind: str = "STANDARD") -> bool:
            return False

        def anonymous(self, shown: Any) -> ServerUser:
            return ServerUser(account="$G")

        async def user(self, shown: Any) -> ServerUser:
            return ServerUser(account="$SYS")

    server = await started(authenticator=Introduced(), system_account="$SYS")
    async with raw_client(server.endpoints[0].port, "") as client:
        await subscribed(client, "x")
        client.send(f"CONNECT {PLAIN}", "SUB x first", "PUB x 1", "a")
        assert await client.settle() == ["first x - [] b'a'"]
        while len(removed) < MANY + 1:
            await asyncio.sleep(0)
        client.send("PUB x 1", "b")
        assert await client.settle() == ["first x - [] b'b'"]
        assert await counted(server) == 1


async def test_rights_that_are_lost(started: Started, removed: list[ClientSubscription]) -> None:
    """Nothing that is forbidden arrives, though the subscriptions end some at a time."""

    class Changing:
        wants_nonce = False
        permissions: Permissions | None = None

        def is_required(self, kind: str = "STANDARD") -> bool:
            return False

        def anonymous(self, shown: Any) -> ServerUser:
            return ServerUser(account="$G", permissions=self.permissions)

        async def user(self, shown: Any) -> ServerUser:
            return self.anonymous(shown)

    authenticator = Changing()
    server = await started(authenticator=authenticator)
    async with raw_client(server.endpoints[0].port) as client:
        await subscribed(client, "x")
        client.sub("last", "last")
        client.pub("last", "remembered")
        assert await client.settle() == ["last last - [] b'remembered'"]
        authenticator.permissions = Permissions(subscribe=SubjectRules(deny=("many.*", "last")))
        reloading = asyncio.ensure_future(server.reload(server.settings))
        while not removed:
            await asyncio.sleep(0)
        assert len(removed) <= clients._CHECKED_AT_ONCE
        of(server, 1).receive(b"PUB last 1\r\na\r\nPUB x 1\r\nb\r\n")
        await reloading
        told = await client.settle()
        assert [one for one in told if not one.startswith("-ERR")] == ["first x - [] b'b'"]
        assert len(told) == MANY + 2
        assert await counted(server) == 1
        assert not server.clients[0].subscription_list[0].is_cut
