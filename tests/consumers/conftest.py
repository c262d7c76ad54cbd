"""A memory store on a manual clock."""

from collections.abc import AsyncIterator

import pytest

import pelton
from pelton.testing import ManualRuntime, manual_runtime


@pytest.fixture
def runtime() -> ManualRuntime:
    return manual_runtime()


@pytest.fixture
async def jet(runtime: ManualRuntime) -> AsyncIterator[pelton.Jet]:
    async with pelton.open("memory:", runtime=runtime) as jet:
        yield jet
