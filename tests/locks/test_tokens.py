"""Fencing tokens grow, though their bucket was deleted and the clock set back: on a file, and on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest

import pelton
from pelton.buckets import reserve_first_token
from tests.kit.clocks import runtime_behind

SOON: Final = 60.0
A_YEAR: Final = 366 * 86_400.0


@pytest.fixture
async def ahead(address: str) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address) as jet:
        yield jet


@pytest.fixture
async def behind(address: str) -> AsyncIterator[pelton.Jet]:
    """The same store, on a clock that was set back by a year."""
    async with pelton.open(address, runtime=runtime_behind(A_YEAR)) as jet:
        yield jet


async def test_of_locks_and_semaphores(ahead: pelton.Jet, behind: pelton.Jet) -> None:
    tokens = list[int]()
    for jet in (ahead, behind, behind, ahead, behind):
        async with jet.lock("car1") as held:
            tokens.append(held.token)
        slot = await jet.semaphore("gates", slots=2).acquire()
        tokens.append(slot.token)
        await jet.delete_bucket("pelton_locks")
    assert tokens == sorted(set(tokens))


async def test_of_elections(ahead: pelton.Jet, behind: pelton.Jet) -> None:
    tokens = list[int]()
    for jet in (ahead, behind, behind, ahead, behind):
        election = jet.elect("scheduler", ttl=10)
        async with asyncio.timeout(SOON), election as term:
            leader = await election.leader()
            assert leader is not None
            assert leader.token == term.token
            tokens.append(term.token)
        # The first term of a bucket in which nothing was ever written begins at once, wherever its sequences begin.
        await jet.delete_bucket(election.bucket)
    assert tokens == sorted(set(tokens))


async def test_many_reserve_at_once(ahead: pelton.Jet, behind: pelton.Jet) -> None:
    firsts = await asyncio.gather(*(reserve_first_token(jet, "KV_x") for jet in (ahead, behind) * 8))
    assert len(set(firsts)) == len(firsts)
    # Another name begins by itself.
    assert await reserve_first_token(behind, "KV_y") < max(firsts)
    # Without that bucket, the clock has to do.
    await ahead.delete_bucket("pelton_tokens")
    assert await reserve_first_token(ahead, "KV_x") >= min(firsts)
