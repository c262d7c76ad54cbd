"""A process without free file descriptors: reported when it opens a store, harmless to an open one."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import pelton
from pelton.api import StoreDescriptorsError
from pelton.engine.salvage import recount
from tests.storage.stores import a_store, last_seq


@contextmanager
def none_left(spared: int = 0) -> Iterator[None]:
    """Use up all descriptors but a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    used = []
    try:
        with suppress(OSError):
            while True:
                used.append(os.dup(0))
        for _ in range(spared):
            os.close(used.pop())
        yield
    finally:
        for descriptor in used:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_an_open_store_needs_no_more_for_its_first_sync(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        with none_left():
            await jet.publish("s.1")
            # Only operations that need one are refused.
            with pytest.raises(StoreDescriptorsError, match="ulimit -n"):
                async with jet.transaction() as transaction:
                    await transaction.publish("s.1")
            await jet.publish("s.1")
        async with jet.transaction() as transaction:
            await transaction.publish("s.1")
        assert await last_seq(jet) == 6
    assert recount(str(path)) == []
    assert os.listdir(tmp_path) == ["a.pelton"]


@pytest.mark.parametrize("new", [False, True])
async def test_opening_says_that_they_are_short(tmp_path: Path, new: bool) -> None:
    path = tmp_path / "a.pelton"
    if not new:
        await a_store(path)
    refused: list[str] = []
    for spared in range(12):
        with none_left(spared):
            try:
                jet = await pelton.open(path)
            except StoreDescriptorsError as error:
                refused.append(str(error))
                continue
        await jet.close()
    assert len(refused) >= 5
    assert all("ulimit -n" in text for text in refused)
    async with pelton.open(path) as jet:
        await jet.create_stream("t")
    assert recount(str(path)) == []
    assert os.listdir(tmp_path) == ["a.pelton"]
