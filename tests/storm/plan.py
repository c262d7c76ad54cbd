"""A storm's store, and how it is opened whatever its key is by now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pelton
from tests.kit.clocks import SharedClock, runtime_with
from tests.kit.deliveries import Promise
from tests.linear.worker import BUCKET
from tests.storm import inherited

STREAMS: Final[dict[str, dict[str, Any]]] = {
    "log": {"allow_atomic": True},
    "work": {"retention": "workqueue"},
    "bills": {"retention": "workqueue"},
    "swept": {"allow_atomic": True},
    "anew": {"retention": "workqueue"},
    "again": {"retention": "workqueue"},
}
KEPT: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("log", "plain"): {"ack_wait": 0.6},
    ("log", "all"): {"ack_policy": "all", "ack_wait": 1.0, "max_ack_pending": 60},
    ("log", "exclusive"): {"max_ack_pending_per_subject": 1, "ack_wait": 0.5},
    ("work", "exclusive"): {"max_ack_pending_per_subject": 1, "ack_wait": 0.6},
}
BILLS: Final = ("bills", "taker")
"""Its messages are acknowledged in transactions."""
REMADE: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("anew", "it"): {"durable_name": "it", "ack_wait": 0.5},
    ("again", "it"): {"name": "it", "inactive_threshold": 30, "ack_wait": 0.5},
}
"""Consumers that are deleted and made again under the same name."""
SETTLED_AWAY: Final = {name for name, fields in STREAMS.items() if fields.get("retention") == "workqueue"}
QUEUE: Final = "storm"
LEASE_S: Final = 3.0
_OPENINGS: Final = 200


class Place(NamedTuple):
    """The files of a storm: its store, its folder for journals, backups and keys; whether the store is encrypted."""

    path: Path
    folder: Path
    encrypted: bool

    @property
    def clock(self) -> SharedClock:
        """Return the machine's clock."""
        return SharedClock(self.folder / "clock")

    @property
    def keys(self) -> list[str | None]:
        """Return all past and planned keys of the store, the newest first."""
        if not self.encrypted:
            return [None]
        return [*reversed((self.folder / "keys").read_text().split())]

    def add_key(self, key: str) -> None:
        """Record a key before the store uses it."""
        with (self.folder / "keys").open("a") as file:
            file.write(f"{key}\n")

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[tuple[pelton.Jet, str | None]]:
        """Open the store with its present key, which may change at any time."""
        jet, key = await self._opened(options)
        try:
            yield jet, key
        finally:
            await jet.close()

    async def _opened(self, options: dict[str, Any]) -> tuple[pelton.Jet, str | None]:
        options.setdefault("runtime", runtime_with(self.clock))
        for _ in range(_OPENINGS):
            for key in self.keys:
                try:
                    return await pelton.open(self.path, key=key, **options), key
                except pelton.StoreKeyError:
                    continue
        raise AssertionError("no key opens the store")

    def verify(self, path: Path | None = None) -> list[str]:
        """Return what is wrong with the store, or with a backup of it."""
        for _ in range(_OPENINGS):
            for key in self.keys:
                try:
                    return pelton.verify(path or self.path, key)
                except pelton.StoreKeyError:
                    continue
        return [f"no key opens {path or self.path}"]


async def make_store(place: Place, version: int) -> None:
    """Make everything that the actors use; in a store of that schema, if it is not 0."""
    if version:
        inherited.unpack(version, place.path)
    if place.encrypted:
        place.add_key("the-first-key")
        if version:
            pelton.rekey(place.path, None, "the-first-key")
    async with place.open() as (jet, _):
        await inherited.take_over(jet, place.folder)
        for name, fields in STREAMS.items():
            await jet.create_stream(name, subjects=[f"{name}.*"], **fields)
        for (stream, name), fields in {**KEPT, BILLS: {"ack_wait": 0.6}}.items():
            await (await jet.stream(stream)).create_consumer(durable_name=name, **fields)
        await jet.create_bucket(BUCKET, history=1)
        await jet.create_stream("effects", subjects=["effects"])
        await jet.queue(QUEUE, exclusive=True, lease=LEASE_S)
        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE ledger(name TEXT PRIMARY KEY, taken INTEGER UNIQUE NOT NULL)")


def promises() -> list[Promise]:
    """Return what the checker needs to know of the consumers that stay."""
    return [
        Promise(
            stream=stream,
            consumer=name,
            ack_policy=fields.get("ack_policy", "explicit"),
            per_subject=fields.get("max_ack_pending_per_subject", 0),
        )
        for (stream, name), fields in {**KEPT, BILLS: {}}.items()
    ]
