"""Fixtures that the tests of locks and elections share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.nats_server import nats_server


@pytest.fixture(params=["file", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store for several processes: a file, or a server."""
    if request.param == "file":
        yield str(tmp_path / "s.pelton")
        return
    with nats_server(tmp_path / "nats") as server:
        yield server.url
