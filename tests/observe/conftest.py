"""A store or a cluster that a program works with, and an operator's look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import pelton
from tests.places import PLACES, address_of


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with address_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
async def jet(address: str) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(address) as opened:
        yield opened


@pytest.fixture
async def look(address: str, jet: pelton.Jet) -> AsyncIterator[pelton.Jet]:
    """What an operator opens, beside the process that works."""
    async with pelton.open(address, read_only="://" not in address) as opened:
        yield opened
