"""Identifying the caller: a task, or the thread that it works for."""

import asyncio
from collections.abc import Hashable

from pelton.runtime import calls_for, owner, this_thread


async def test_each_task_is_its_own_owner() -> None:
    async def ask() -> Hashable:
        return owner()

    mine = owner()
    assert mine is asyncio.current_task()
    assert await ask() is mine
    assert await asyncio.create_task(ask()) is not mine


async def test_a_task_that_works_for_a_thread_stands_for_it_alone() -> None:
    async def spawned() -> Hashable:
        return owner()

    async def work() -> tuple[Hashable, Hashable]:
        calls_for(this_thread())
        return owner(), await asyncio.create_task(spawned())

    first, child = await asyncio.create_task(work())
    second, _ = await asyncio.create_task(work())
    assert first == second == this_thread()
    assert isinstance(child, asyncio.Task)


def test_outside_a_task_there_is_nobody() -> None:
    assert owner() is None
