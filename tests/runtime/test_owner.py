"""Identifying the caller: a task, or the thread that it works for."""

import asyncio
from collections.abc import Hashable

from pelton.runtime import Caller, calls_for, owner, this_thread


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


async def test_a_caller_is_recognised_in_its_task_alone() -> None:
    async def ask() -> bool:
        return caller.calls_again

    caller = Caller()
    assert caller.identity is asyncio.current_task()
    assert await ask()
    assert not await asyncio.create_task(ask())
    assert not await asyncio.to_thread(asyncio.run, ask())
    assert not await asyncio.to_thread(lambda: caller.calls_again)


async def test_tasks_that_work_for_one_thread_are_one_caller() -> None:
    async def made() -> Caller:
        calls_for(this_thread())
        return Caller()

    async def asked() -> bool:
        calls_for(this_thread())
        return caller.calls_again

    caller = await asyncio.create_task(made())
    assert await asyncio.create_task(asked())
    assert not caller.calls_again


def test_a_task_on_another_loop_of_the_same_thread_is_another_caller() -> None:
    async def made() -> Caller:
        return Caller()

    async def asked() -> bool:
        return caller.calls_again

    with asyncio.Runner() as first, asyncio.Runner() as second:
        caller = first.run(made())
        assert not second.run(asked())
        assert not caller.calls_again


def test_outside_a_task_a_caller_is_whoever_is_in_none() -> None:
    caller = Caller()
    assert caller.identity is None
    assert caller.calls_again
