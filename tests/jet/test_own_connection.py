"""The connection that keepers of leases have of their own: made when needed, left when it fails, told at its end."""

import asyncio

import pytest

from pelton.api import StoreBusyError, StoreClosedError
from pelton.jet.registers import OwnConnection
from pelton.testing import ManualClock


class Store:
    """Something that can be cloned, until it has ``failure``; its clones close when they are let."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.clones: list[Clone] = []

    def clone(self) -> "Clone":
        if self.failure is not None:
            raise self.failure
        self.clones.append(Clone())
        return self.clones[-1]


class Clone:
    """One connection."""

    def __init__(self) -> None:
        self.closes = 0
        self.hangs = False
        self.failure: Exception | None = None

    async def close(self) -> None:
        self.closes += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure


def connection(store: Store, clock: ManualClock, told: list[Exception]) -> OwnConnection[Clone]:
    return OwnConnection(store.clone, clock, 5.0, told.append)


async def test_it_is_made_when_it_is_first_needed_and_again_once_it_was_left() -> None:
    store = Store()
    own = connection(store, ManualClock(), [])
    await own.leave()
    assert store.clones == []
    first = own.get()
    assert own.get() is first
    await own.leave()
    await own.leave()
    assert first.closes == 1
    assert own.get() is not first


async def test_a_store_that_is_over_is_told_and_raised_one_that_is_busy_is_raised() -> None:
    store, told = Store(), list[Exception]()
    own = connection(store, ManualClock(), told)
    store.failure = StoreBusyError("x")
    with pytest.raises(StoreBusyError):
        own.get()
    assert told == []
    store.failure = StoreClosedError("x")
    with pytest.raises(StoreClosedError):
        own.get()
    assert told == [store.failure]


@pytest.mark.parametrize("failure", [None, StoreClosedError("x")])
async def test_leaving_ends_whatever_the_connection_does(failure: Exception | None) -> None:
    store, clock = Store(), ManualClock()
    own = connection(store, clock, [])
    left = own.get()
    left.hangs, left.failure = failure is None, failure
    leaving = asyncio.create_task(own.leave())
    for _ in range(3):
        await asyncio.sleep(0)
    clock.advance(5.0)
    await leaving
    assert own.get() is not left
