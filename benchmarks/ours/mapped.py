"""Publishing to a stream that renames or republishes. What arrived is checked with the store afterwards."""

from __future__ import annotations

from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FILTER, PAYLOAD, SUBJECT, one_by_one
from benchmarks.ours import Sync
from benchmarks.ours.streams import STREAM

_TRANSFORM = {"src": "bench.*", "dest": "by.{{partition(16,1)}}.{{wildcard(1)}}"}
_REPUBLISH = {"src": FILTER, "dest": "again.>"}


async def publish_batch(run: Run, sync: Sync, kind: str) -> Sample:
    """Batches of 1,000, awaiting each batch."""
    batch = [(SUBJECT, PAYLOAD)] * BATCH
    mapping: dict[str, Any] = {"plain": {}, "transform": {"subject_transform": _TRANSFORM}}.get(
        kind, {"republish": _REPUBLISH}
    )
    async with pelton.open(run.workdir / "bench.pelton", sync=sync) as jet:
        stream = await jet.create_stream(STREAM, subjects=[FILTER], **mapping)
        listening = await jet.backend.subscribe("again.>") if kind == "heard" else None
        copy = await jet.create_stream("copy", subjects=["again.>"]) if kind == "stored" else None

        async def step() -> None:
            await jet.publish_batch(batch)
            for _ in range(BATCH if listening is not None else 0):
                if await listening.next(0) is None:
                    raise RuntimeError("a message was not said again")

        rate = await one_by_one(run.seconds, step, each=BATCH)
        if copy is not None and (await copy.info()).state.messages != (await stream.info()).state.messages:
            raise RuntimeError("not every message was stored again")
        return {"rate": rate}
