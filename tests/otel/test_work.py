"""``pelton work --otel``: the worker of the command line traces its jobs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pelton

SHOP = """
import pelton
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
exporter = ConsoleSpanExporter(out=open("spans", "a"), formatter=lambda span: span.name + chr(10))
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
jobs = pelton.Jobs()

@jobs.job
async def repair(car: str) -> str:
    return car
"""


async def test_the_worker_traces_its_jobs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        handle = await (await jet.queue("garage")).enqueue("repair", car="a")
        arguments = ["shop:jobs", "--store", "shop.pelton", "--queue", "garage", "--otel"]
        with subprocess.Popen([sys.executable, "-m", "pelton", "work", *arguments], cwd=tmp_path) as worker:
            try:
                assert await handle.value(timeout=60) == "a"
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait(30)
    assert (tmp_path / "spans").read_text() == "run garage/repair\n"
