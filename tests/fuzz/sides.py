"""Two servers with one configuration, in processes of their own: `pelton serve` and nats-server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.access import operator_config
from tests.kit.nats_server import NatsServer, free_ports
from tests.kit.served import ServedStore

ACCOUNTS: Final = 6
# What memory and descriptors may grow by after the first cases: caches fill, stores are opened.
_MORE_MB: Final = 150
_MORE_FILES: Final = 40


class Side(NamedTuple):
    """Where the servers of one kind listen: that with users and WebSocket, that of an operator.

    ``folder`` has the streams of nats-server, below the names of their accounts.
    """

    name: str
    port: int
    websocket_port: int
    operator_port: int
    folder: Path


class Pair:
    """Both sides, and what is known of ours from outside."""

    def __init__(self, ours: Side, theirs: Side, servers: list[ServedStore]) -> None:
        self.ours, self.theirs = ours, theirs
        self._servers = servers
        self._first: dict[int, tuple[float, int]] = {}

    def complaint(self) -> str:
        """What the logs say that should not be there; the text is empty if there is nothing."""
        logs = [server.log for server in self._servers]
        return "\n".join(log for log in logs if "Traceback" in log or "ERROR" in log or "Error:" in log)

    def growth(self) -> str:
        """Whether memory or descriptors have grown since the first call; to be asked when nothing is under way."""
        found = []
        for server in self._servers:
            memory, files = _memory_of(server.pid), len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
            before = self._first.setdefault(server.pid, (memory, files))
            if memory > before[0] + _MORE_MB or files > before[1] + _MORE_FILES:
                found.append(f"{before[0]:.0f} MB and {before[1]} descriptors became {memory:.0f} MB and {files}")
        return "; ".join(found)


def _memory_of(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def _users(websocket_port: int) -> str:
    accounts = "\n".join(
        f"U{n} {{ jetstream: enabled, users: [{{ user: u{n}, password: p }}] }}" for n in range(ACCOUNTS)
    )
    listen = f'listen: "127.0.0.1:{websocket_port}", no_tls: true, compression: true'
    return f"accounts {{\n{accounts}\n}}\nwebsocket {{ {listen} }}\n"


@contextmanager
def running_pair(home: Path) -> Iterator[Pair]:
    """Both sides, for as long as the context lasts."""
    here, there = free_ports(2)
    with ExitStack() as stack:
        theirs = [
            NatsServer(home / "theirs", extra=_users(there)),
            NatsServer(home / "operator", jetstream=False, extra=operator_config()),
        ]
        ours = []
        for name, text in (("users", _users(here)), ("jwts", operator_config())):
            config = home / f"{name}.conf"
            config.parent.mkdir(parents=True, exist_ok=True)
            # As much as the other one has.
            most = f"store_dir: {json.dumps(str(home / name))}, max_file_store: 8G, max_memory_store: 1G"
            store = f"jetstream {{ {most} }}\n" if name == "users" else ""
            config.write_text(f'host: "127.0.0.1"\nserver_name: pelton\n{store}{text}')
            ours.append(ServedStore(None, ("-c", str(config), "--sync", "off")))
        for server in (*theirs, *ours):
            stack.callback(server.kill)
            server.start()
        folder = home / "theirs" / "store" / "jetstream"
        yield Pair(
            Side("pelton", ours[0].port, here, ours[1].port, home / "users"),
            Side("nats-server", theirs[0].port, there, theirs[1].port, folder),
            ours,
        )
