"""A store that is closed while a push consumer ends: neither blocks the other."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import pelton
from pelton.jet.message_source import OrderedReader

_ROUNDS = 12


@pytest.mark.parametrize("rounds", range(_ROUNDS))
async def test_nothing_fails_behind_a_close(tmp_path: Path, caplog: pytest.LogCaptureFixture, rounds: int) -> None:
    jet = await pelton.open(tmp_path / "a.pelton")
    await jet.create_stream("s")
    await jet.publish("s", b"")
    is_read = asyncio.Event()

    async def read() -> None:
        async for _ in OrderedReader(jet.backend, jet.runtime, "s").follow():
            is_read.set()

    reading = asyncio.create_task(read())
    await is_read.wait()
    reading.cancel()
    # How far the reader is with leaving when the store is closed.
    for _ in range(rounds):
        await asyncio.sleep(0)
    await jet.close()
    await asyncio.wait([reading])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
