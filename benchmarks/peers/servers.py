"""The server that a client of NATS is measured against: nats-server, or `pelton serve`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.ours.served import serving
from benchmarks.peers.nats_server import running


def started(workdir: Path, always: bool, served: bool) -> AbstractAsyncContextManager[str]:
    """The URL of a server below `workdir`; `served`: it is Pelton's, which always fsyncs."""
    return serving(workdir) if served else running(workdir, always)
