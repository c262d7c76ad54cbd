"""Stores and what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.otel.recording import Recording
from tests.places import PLACES, address_of


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with address_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def recording() -> Recording:
    return Recording()
