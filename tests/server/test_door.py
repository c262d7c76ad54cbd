"""Slow checks of passwords: who waits for whom, what is remembered, and what a reload changes meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import bcrypt

from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.listening import ConfiguredDoor, FairChecks
from pelton.server.users import ConfiguredUsers
from pelton.testing import ManualClock
from tests.kit.served import config_of

HASH, OTHER = (bcrypt.hashpw(word, bcrypt.gensalt(4)).decode() for word in (b"right", b"other"))


def users_of(*hashes: str, key: bytes = b"key") -> ConfiguredUsers:
    users = ",".join(f"{{user: u{number}, password: '{each}'}}" for number, each in enumerate(hashes))
    return ConfiguredUsers(config_of(f"authorization {{users: [{users}]}}", read=lambda path: "").settings, key)


async def turns(checks: FairChecks, *addresses: str) -> tuple[list[str], list[asyncio.Task[None]]]:
    """Take the only thread, and let checks of these addresses wait; those that get a turn note it, in order."""
    assert await checks.has_turn("first")
    seen: list[str] = []

    async def wait(number: int, address: str) -> None:
        if await checks.has_turn(address):
            seen.append(f"{address}{number}")

    waiting = [asyncio.create_task(wait(number, address)) for number, address in enumerate(addresses)]
    await asyncio.sleep(0)
    return seen, waiting


async def test_addresses_take_turns_and_the_last_of_one_is_first() -> None:
    checks = FairChecks(1)
    seen, waiting = await turns(checks, "a", "a", "a", "b")
    for _ in waiting:
        checks.give_back()
    await asyncio.gather(*waiting)
    assert seen == ["a2", "b3", "a1", "a0"]


async def test_who_leaves_waits_no_more_and_an_address_has_a_bound() -> None:
    checks = FairChecks(1, most=2)
    seen, waiting = await turns(checks, "a", "a", "a", "b")
    await waiting[0]
    waiting[2].cancel()
    await asyncio.gather(waiting[2], return_exceptions=True)
    checks.give_back()
    # Its turn has come when it leaves: the next one has it.
    waiting[1].cancel()
    await asyncio.gather(waiting[1], return_exceptions=True)
    await waiting[3]
    assert seen == ["b3"]
    checks.give_back()
    assert await asyncio.wait_for(checks.has_turn("c"), 60)


async def test_a_thread_is_busy_until_its_check_is_over() -> None:
    checks, over, begun = FairChecks(1), threading.Event(), Future[None]()

    def check() -> bool:
        begun.set_result(None)
        return over.wait(60)

    assert await checks.has_turn("a")
    first = asyncio.create_task(checks.run(check))
    await asyncio.wrap_future(begun)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(checks.has_turn("b"))
    await asyncio.sleep(0)
    assert not second.done()
    over.set()
    assert await asyncio.wait_for(second, 60)


async def test_a_password_that_was_right_is_not_slow_again() -> None:
    users = users_of(HASH)
    right, wrong = Credentials(user="u0", password="right"), Credentials(user="u0", password="wrong")
    assert users.is_slow(right)
    assert isinstance(users.identify(right, 0), ServerUser)
    assert not users.is_slow(right)
    assert isinstance(users.identify(right, 0), ServerUser)
    assert users.is_slow(wrong)
    assert isinstance(users.identify(wrong, 0), LoginRefusal)
    for after, is_slow in ((users_of(HASH, OTHER), False), (users_of(OTHER), True)):
        after.remember(users)
        assert after.is_slow(right) == is_slow
    after = users_of(HASH)
    after.remember(users_of(OTHER))
    assert after.is_slow(right)
    without = users_of(HASH, key=b"")
    assert isinstance(without.identify(right, 0), ServerUser)
    assert without.is_slow(right)


async def test_a_login_under_way_is_decided_by_the_settings_at_its_end() -> None:
    before, after = users_of(HASH), users_of(OTHER)
    door = ConfiguredDoor(before, ManualClock())
    asked, answer = Future[None](), threading.Event()
    identify = before.identify

    def slowly(proof: Credentials, now: float) -> ServerUser | LoginRefusal:
        asked.set_result(None)
        assert answer.wait(60)
        return identify(proof, now)

    before.identify = slowly  # type: ignore[method-assign]
    login = asyncio.create_task(door.user(Credentials(user="u0", password="right")))
    await asyncio.wrap_future(asked)
    door.users = after
    answer.set()
    assert isinstance(await login, LoginRefusal)
