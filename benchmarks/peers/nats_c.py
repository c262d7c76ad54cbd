"""NATS's client for C, a small program compiled here, so that not the client but the server is measured."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from benchmarks.case import Run, Sample
from benchmarks.peers.servers import started

_MESSAGES = 4
"""How many times as many messages are read as in the other cases: the client is that much faster."""


def compile_client(run: Run) -> Sample:
    """Compile the program, once a case."""
    source = Path(__file__).with_name("libnats.c")
    command = ["cc", "-O2", "-o", str(run.shared / "libnats"), str(source), "-lnats"]
    subprocess.run(command, check=True)
    return {}


async def measured(run: Run, what: str, always: bool = False, served: bool = False) -> Sample:
    """What the program finds on a server that is the only child of this process."""
    async with started(run.workdir, always, served) as url:
        pid = Path("/proc/thread-self/children").read_text().split()[0]
        command = (str(run.shared / "libnats"), what, url, str(run.seconds), str(run.drain * _MESSAGES), pid)
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await client.communicate()
    if client.returncode:
        raise RuntimeError(f"the client ended with code {client.returncode}")
    sample: Sample = json.loads(out)
    return sample
