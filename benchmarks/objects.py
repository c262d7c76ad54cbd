"""The object that the object store cases put and get."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from benchmarks.case import Sample
from benchmarks.load import one_by_one

BUCKET = "bench"
NAME = "object"
CHUNK = 128 * 1024
MIB = 64
CONTENT = random.Random(20).randbytes(MIB << 20)

Put = Callable[[], Awaitable[object]]
Get = Callable[[], Awaitable[bytes]]


async def rates(seconds: float, put: Put, get: Get) -> Sample:
    """Return MiB/s of replacing an object, and of getting it completely. Every result is verified."""

    async def checked() -> None:
        if await get() != CONTENT:
            raise RuntimeError("what was got is not what was put")

    return {"put": await one_by_one(seconds, put, each=MIB), "get": await one_by_one(seconds, checked, each=MIB)}
