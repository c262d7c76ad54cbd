"""`pelton serve` in a process of its own, on a free port, for one measurement."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_LISTENS = b"Listening for client connections on "
_START_LIMIT = 15.0


@asynccontextmanager
async def serving(workdir: Path, *flags: str) -> AsyncIterator[str]:
    """The URL of a server on a fresh store below `workdir`, which fsyncs before it answers; `flags` are more of its."""
    store = str(workdir / "served.pelton")
    command = (sys.executable, "-m", "pelton", "serve", store, "-a", "127.0.0.1", "-p", "-1", *flags)
    server = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert server.stderr is not None
    try:
        where = await asyncio.wait_for(server.stderr.readline(), _START_LIMIT)
        ready = await asyncio.wait_for(server.stderr.readline(), _START_LIMIT)
        if _LISTENS not in where or b"ready" not in ready:
            raise RuntimeError(f"pelton serve said {(where + ready).decode()!r}")
        yield f"nats://{where.partition(_LISTENS)[2].decode().strip()}"
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()
