"""Addresses of the two kinds of backend, for tests of what works the same on both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pelton
from tests.kit.nats_server import nats_server

PLACES = ("file", "cluster")


@contextlib.contextmanager
def address_of(place: str, folder: Path) -> Iterator[str]:
    """Yield the path of an empty store, or the URL of a server without streams."""
    if place == "cluster":
        with nats_server(folder) as server:
            yield server.url
        return
    path = folder / "shop.pelton"
    with pelton.sync.open(path):
        pass
    yield str(path)
