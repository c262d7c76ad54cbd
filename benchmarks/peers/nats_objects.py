"""nats-py's object store."""

from __future__ import annotations

from typing import Any

import nats

from benchmarks.case import Run, Sample
from benchmarks.objects import BUCKET, CONTENT, NAME, rates
from benchmarks.peers.nats_server import running


async def put_and_get(run: Run, always: bool) -> Sample:
    """Put an object of bytes, get it as bytes."""
    async with running(run.workdir, always) as url:
        client = await nats.connect(url)
        try:
            store: Any = await client.jetstream(timeout=60).create_object_store(BUCKET)

            async def get() -> bytes:
                content: bytes = (await store.get(NAME)).data
                return content

            return await rates(run.seconds, lambda: store.put(NAME, CONTENT), get)
        finally:
            await client.close()
