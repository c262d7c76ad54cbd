"""What is lost while the disk is full: the loss is reported, even if other errors occur because of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from pathlib import Path

import pytest

from pelton import Jet, JobContext, LockLostError
from pelton.api import LeaseLostError, StoreFullError, TermLostError
from tests.kit.faults import FullDisk
from tests.storage.stores import open_engine

SOON = 60.0
_numbers = count()


@pytest.fixture
def disk() -> Iterator[FullDisk]:
    disk = FullDisk(f"full-{next(_numbers)}")
    yield disk
    disk.close()


@pytest.fixture
async def jet(disk: FullDisk, tmp_path: Path) -> AsyncIterator[Jet]:
    async with open_engine(tmp_path / "a.pelton", vfs=disk.vfs) as jet:
        yield jet
        disk.empty()


async def filled(disk: FullDisk, block: AbstractAsyncContextManager[object], then: Awaitable[object]) -> None:
    """Fill the disk in a block, and act then."""
    async with asyncio.timeout(SOON), block:
        disk.fill()
        await then


async def fail() -> None:
    raise ZeroDivisionError


async def test_a_block_whose_lock_is_lost_ends_with_that(jet: Jet, disk: FullDisk) -> None:
    for held_by in (jet.lock("car1", ttl=1), jet.semaphore("gpu", slots=2, ttl=1)):
        with pytest.raises(LockLostError, match="renewed in time") as lost:
            await filled(disk, held_by, asyncio.sleep(SOON))
        assert isinstance(lost.value.__cause__, StoreFullError)
        assert asyncio.current_task().cancelling() == 0
        disk.empty()


async def test_releasing_what_was_lost_tells_of_the_loss(jet: Jet, disk: FullDisk) -> None:
    held = await jet.lock("car1", ttl=1).acquire()
    disk.fill()
    assert await held.until_lost()
    with pytest.raises(LockLostError):
        await held.release()
    assert held.lost


async def test_a_release_that_cannot_be_stored_says_so_while_the_lock_is_kept(jet: Jet, disk: FullDisk) -> None:
    lock = jet.lock("car1", ttl=30)
    held = await lock.acquire()
    disk.fill()
    with pytest.raises(StoreFullError):
        await held.release()
    disk.empty()
    assert len(await lock.holders()) == 1


async def test_what_a_block_raised_is_not_replaced_by_a_release_that_fails(jet: Jet, disk: FullDisk) -> None:
    with pytest.raises(ZeroDivisionError):
        await filled(disk, jet.lock("car1"), fail())


async def test_a_block_whose_term_is_lost_ends_with_that(jet: Jet, disk: FullDisk) -> None:
    with pytest.raises(TermLostError, match="renewed in time"):
        await filled(disk, jet.elect("s", ttl=1), asyncio.sleep(SOON))
    assert asyncio.current_task().cancelling() == 0


async def test_a_job_whose_lease_is_lost_is_told_so(jet: Jet, disk: FullDisk) -> None:
    garage = await jet.queue("garage", lease=1)
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @garage.job
    async def repair(context: JobContext) -> None:
        disk.fill()
        try:
            await asyncio.sleep(SOON)
        finally:
            try:
                context.check()
            except LeaseLostError as lost:
                told.set_exception(lost)
            disk.empty()

    await repair.enqueue()
    working = asyncio.create_task(garage.work())
    with pytest.raises(LeaseLostError, match="no space left"):
        await asyncio.wait_for(told, SOON)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
