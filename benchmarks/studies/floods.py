"""How long others wait while one client floods `pelton serve` or nats-server: ``python -m benchmarks.studies.floods``.

A client sends PING every 5 ms, whether the last one was answered or not; the table shows after how many milliseconds
PONG came: the median, the 99th percentile and the longest, for each way of :mod:`benchmarks.studies.flooding`, and the
longest when the client has been killed. A second table shows memory and descriptors: before, at the most, and 2 s after
it has left.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.stats import percentile
from benchmarks.studies.flooding import WAYS
from benchmarks.studies.served import Running
from tests.kit.nats_server import NatsServer
from tests.kit.served import ServedStore

SECONDS: Final = 4.0
_AFTER_S: Final = 2.0
_EVERY_S: Final = 0.005
_LOOK_S: Final = 0.05
_PREPARES_S: Final = 120.0
_NARROWED: Final = ', permissions: { subscribe: { deny: "many.>" } }'
_LOSES: Final = "loses the right to 400,000"
_GUARDED: Final = "$2a$11$xrQUadN/ORL49eLHqqouW.edg1I4INYhU28by/MwBTRT6jTmA4.WC"


class Held(NamedTuple):
    """What a process holds: megabytes, and open descriptors."""

    memory: float
    descriptors: int

    @classmethod
    def of(cls, pid: int, field: str = "VmRSS") -> Held:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        size = int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024
        return cls(size, len(os.listdir(f"/proc/{pid}/fd")))


class Found(NamedTuple):
    """What one flood did: milliseconds from PING to PONG, then and when it had ended, and what the server held."""

    waits: list[float]
    later: list[float]
    before: Held
    most: Held
    after: Held

    @property
    def times(self) -> str:
        """The median, the 99th percentile and the longest; the longest when it had ended."""
        p50, p99 = percentile(self.waits, 0.5), percentile(self.waits, 0.99)
        return f"{p50:.1f}, {p99:.1f}, {max(self.waits):.0f}; {max(self.later):.0f}"

    @property
    def held(self) -> str:
        """Memory and descriptors."""
        parts = (self.before, self.most, self.after)
        return f"{', '.join(f'{one.memory:.0f}' for one in parts)} | {', '.join(f'{one.descriptors}' for one in parts)}"


class Pinger:
    """A client that does nothing but PING."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b'CONNECT {"user":"p","pass":"p","verbose":false}\r\n')
        self._sent: deque[float] = deque()
        self._rest = b""
        self._waits: list[float] = []
        self._next = time.perf_counter()

    def ping(self, seconds: float, look: Callable[[], None], is_enough: Callable[[], bool] = lambda: False) -> None:
        """Go on for so long, and look now and again."""
        until, seen = time.perf_counter() + seconds, 0.0
        self._next = time.perf_counter()
        while (now := time.perf_counter()) < until and not is_enough():
            if now >= self._next:
                self._sent.append(self._next)
                self._socket.sendall(b"PING\r\n")
                self._next += _EVERY_S
            if now - seen > _LOOK_S:
                look()
                seen = now
            if select.select([self._socket], [], [], max(self._next - time.perf_counter(), 0))[0]:
                self._receive()

    def settle(self) -> list[float]:
        """Wait until all are answered; return how long each has waited since the last call."""
        while self._sent:
            self._receive()
        waits, self._waits = self._waits, []
        return waits

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        now = time.perf_counter()
        if not data:
            raise RuntimeError("the server cut a client that does nothing")
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        for line in lines:
            if line == b"PONG":
                self._waits.append((now - self._sent.popleft()) * 1000)
            elif line == b"PING":
                self._socket.sendall(b"PONG\r\n")


class Server:
    """A server that is started with a configuration, and can be told another one."""

    def __init__(self, home: Path, *, is_ours: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.http_port: int = probe.getsockname()[1]
        self._file = home / ("ours.conf" if is_ours else "server.conf")
        jetstream = f"jetstream {{ store_dir: {json.dumps(str(home / 'store'))} }}"
        self._text = f'host: "127.0.0.1"\nserver_name: ours\n{jetstream}\n{self._users()}'
        if is_ours:
            self._file.write_text(self._text)
            self.process: Running = ServedStore(None, ("-c", str(self._file)))
        else:
            self.process = NatsServer(home, extra=self._users())
        self.process.start()

    def _users(self, narrowed: str = "") -> str:
        users = (
            f'{{ user: p, password: p }}, {{ user: f, password: p{narrowed} }}, {{ user: g, password: "{_GUARDED}" }}'
        )
        return f'http: "127.0.0.1:{self.http_port}"\nauthorization {{ users: [ {users} ] }}\n'

    def narrow(self) -> None:
        """Let the flooding client no longer subscribe to what it subscribes to."""
        self._file.write_text(self._file.read_text().replace(self._users(), self._users(_NARROWED)))
        self.process.signal(signal.SIGHUP)


@contextmanager
def flooding(way: str, server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """The client that floods, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies.flooding",
        way,
        str(server.process.port),
        str(server.http_port),
    ]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


def flooded(way: str, server: Server, seconds: float) -> Found:
    """Measure one flood."""
    pid, most = server.process.pid, 0
    before, pinger = Held.of(pid), Pinger(server.process.port)

    def look() -> None:
        nonlocal most
        most = max(most, Held.of(pid).descriptors)

    with flooding(way, server) as flood:
        said, told = flood.stdout, flood.stdin
        assert told is not None
        assert said is not None
        pinger.ping(_PREPARES_S, look, lambda: bool(select.select([said], [], [], 0)[0]))
        pinger.settle()
        told.write(b"go\n")
        told.flush()
        if way == _LOSES:
            server.narrow()
        pinger.ping(seconds, look)
        waits = pinger.settle()
    pinger.ping(_AFTER_S, look)
    later, peak = pinger.settle(), Held.of(pid, "VmHWM")
    return Found(waits, later, before, Held(peak.memory, most), Held.of(pid))


def measured(way: str, seconds: float, *, is_ours: bool) -> Found | str:
    """Measure one flood of a new server."""
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home), is_ours=is_ours)
        try:
            return flooded(way, server, seconds)
        except (OSError, RuntimeError) as error:
            return f"{error}"
        finally:
            server.process.kill()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.floods", description="What one client's flood costs others."
    )
    parser.add_argument("--only", action="append", choices=list(WAYS), help="this way of flooding, not all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each flood")
    parser.add_argument("--ours", action="store_true", help="no nats-server")
    return parser.parse_args(argv)


def main() -> None:
    """Print the tables."""
    asked = arguments()
    servers = {"pelton serve": True} | ({} if asked.ours else {"nats-server": False})
    print("| PING beside it (ms: p50, p99, longest; longest after it) |", " | ".join(servers), "|")
    print("|---" * (len(servers) + 1) + "|")
    rows = []
    for way in asked.only or WAYS:
        found = [measured(way, asked.seconds, is_ours=is_ours) for is_ours in servers.values()]
        print(f"| {way} |", " | ".join(one if isinstance(one, str) else one.times for one in found), "|", flush=True)
        rows.append((way, [f"{one} | -" if isinstance(one, str) else one.held for one in found]))
    print("\n| before, most, after |", " | ".join(f"{name}, MB | descriptors" for name in servers), "|")
    print("|---" * (2 * len(servers) + 1) + "|")
    for way, held in rows:
        print(f"| {way} |", " | ".join(held), "|")


if __name__ == "__main__":
    main()
