"""Fixtures for pytest, which finds them by itself: an entry point of ``pytest11``.

The async ones need pytest-asyncio (in either mode) or the plugin of anyio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import pytest

from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.queue import Jobs, Queue
from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime

F = TypeVar("F", bound=Callable[..., Any])


def _async_fixture(function: F) -> F:
    made: Any
    try:
        import pytest_asyncio
    except ImportError:
        made = pytest.fixture(function)
    else:
        # In its strict mode, it runs only fixtures that are declared as its own.
        made = pytest_asyncio.fixture(function)
    return made  # type: ignore[no-any-return]  # pytest's and pytest-asyncio's decorators differ in their types


@pytest.fixture
def pelton_runtime() -> ManualRuntime:
    """Return a runtime whose clock moves only when a test turns it."""
    return manual_runtime()


@pytest.fixture
def pelton_clock(pelton_runtime: ManualRuntime) -> ManualClock:
    """Return the clock of the store."""
    return pelton_runtime.clock


@_async_fixture
async def pelton_jet(pelton_runtime: ManualRuntime) -> AsyncIterator[Jet]:
    """Open a store in memory, with the manual clock."""
    async with open_store("memory:", runtime=pelton_runtime) as jet:
        yield jet


@pytest.fixture
def pelton_jobs() -> Jobs | Sequence[Jobs] | None:
    """Return the jobs of the queue: none, unless you have a fixture of this name."""
    return None


@_async_fixture
async def pelton_queue(pelton_jet: Jet, pelton_jobs: Jobs | Sequence[Jobs] | None) -> Queue:
    """Open a queue in that store, with your jobs."""
    return await pelton_jet.queue("tests", jobs=pelton_jobs)
