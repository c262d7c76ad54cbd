"""What `pelton serve` and nats-server take besides messages a second: ``python -m benchmarks.studies.served``.

When each is ready, its memory with idle connections, its CPU for a message to many clients, and what a client that
floods leaves to others. The servers take turns; the table shows medians.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import nats
from nats.aio.client import Client

from tests.kit.nats_server import NatsServer
from tests.kit.served import ServedStore

ROUNDS = 5
IDLE = 5_000
EARS = 500
MESSAGES = 400
REQUESTS = 1_500
PAYLOAD = bytes(128)
HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
FLOOD = """
import socket, sys
flood = b"PUB nobody 128\\r\\n" + bytes(128) + b"\\r\\n"
sender = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sender.sendall(b'CONNECT {"verbose":false}\\r\\n' + flood * 200)
print("flooding", flush=True)
while True:
    sender.sendall(flood * 200)
"""


class Running(Protocol):
    """A server in a process of its own."""

    @property
    def pid(self) -> int: ...

    port: int

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def signal(self, number: signal.Signals) -> None: ...


def ours(home: Path) -> Running:
    """`pelton serve` on a new store."""
    return ServedStore(home / "store.pelton")


def theirs(home: Path) -> Running:
    """nats-server."""
    return NatsServer(home)


@contextmanager
def running(made: Callable[[Path], Running]) -> Iterator[Running]:
    """A server with a folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        server = made(Path(home))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has taken."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(ticks[11]) + int(ticks[12])) / 100


def memory_of(pid: int) -> float:
    """Megabytes that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def ready(made: Callable[[Path], Running]) -> dict[str, float]:
    """Seconds until it says that it is ready."""
    began = time.perf_counter()
    with running(made):
        return {"ready, s": time.perf_counter() - began}


class _Counter(asyncio.Protocol):
    """A client that subscribes to one subject, or to none, and counts bytes."""

    def __init__(self, wanted: int = 0) -> None:
        self.is_greeted = asyncio.Event()
        self.is_done = asyncio.Event()
        self._left = wanted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(HELLO + (b"SUB fan 1\r\n" if self._left else b"") + b"PING\r\n")

    def data_received(self, data: bytes) -> None:
        if not self.is_greeted.is_set():
            if data.endswith(b"PONG\r\n"):
                self.is_greeted.set()
            return
        self._left -= len(data)
        if self._left <= 0:
            self.is_done.set()


async def _counters(port: int, number: int, wanted: int = 0) -> list[_Counter]:
    loop, found = asyncio.get_running_loop(), [_Counter(wanted) for _ in range(number)]
    for one in found:
        await loop.create_connection(lambda one=one: one, "127.0.0.1", port)  # type: ignore[misc]  # a default argument
        await one.is_greeted.wait()
    return found


async def idle(made: Callable[[Path], Running]) -> dict[str, float]:
    """Memory without and with idle connections."""
    with running(made) as server:
        before = memory_of(server.pid)
        kept = await _counters(server.port, IDLE)
        return {"memory at first, MB": before, f"with {len(kept):,} idle connections, MB": memory_of(server.pid)}


async def fan_out(made: Callable[[Path], Running]) -> dict[str, float]:
    """Deliveries of one client's messages to many: a second, and for each second of the server's CPU."""
    with running(made) as server:
        size = len(b"MSG fan 1 %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD))
        ears = await _counters(server.port, EARS, MESSAGES * size)
        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        taken, began = cpu_of(server.pid), time.perf_counter()
        for _ in range(MESSAGES):
            await client.publish("fan", PAYLOAD)
        await client.flush()
        for ear in ears:
            await ear.is_done.wait()
        seconds, taken = time.perf_counter() - began, cpu_of(server.pid) - taken
        await client.close()
    count = MESSAGES * EARS / 1000
    return {"fan-out, k deliveries/s": count / seconds, "k deliveries a second of CPU": count / max(taken, 0.01)}


async def _requests(client: Client) -> list[float]:
    times = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        await client.request("service", PAYLOAD, timeout=30)
        times.append(time.perf_counter() - began)
    return sorted(times)


async def flood(made: Callable[[Path], Running]) -> dict[str, float]:
    """What requests of two clients keep of their rate beside a client that floods, and how long they take."""
    with running(made) as server:
        url = f"nats://127.0.0.1:{server.port}"
        here, there = await nats.connect(url), await nats.connect(url)

        async def answer(message: nats.aio.msg.Msg) -> None:
            await message.respond(message.data)

        await there.subscribe("service", cb=answer)
        await there.flush()
        await there.flush()
        alone = await _requests(here)
        flooding = subprocess.Popen([sys.executable, "-c", FLOOD, str(server.port)], stdout=subprocess.PIPE)
        assert flooding.stdout is not None
        flooding.stdout.readline()
        try:
            beside = await _requests(here)
        finally:
            flooding.kill()
            flooding.communicate()
        await here.close()
        await there.close()
    return {
        "requests beside a flood, of the rate without": sum(alone) / sum(beside),
        "their p99 without it, ms": alone[len(alone) * 99 // 100] * 1000,
        "their p99 beside it, ms": beside[len(beside) * 99 // 100] * 1000,
    }


async def _measured(made: Callable[[Path], Running]) -> dict[str, float]:
    return ready(made) | await idle(made) | await fan_out(made) | await flood(made)


def main() -> None:
    """Print the table."""
    found: dict[str, list[dict[str, float]]] = {"pelton serve": [], "nats-server": []}
    for _ in range(ROUNDS):
        for name, made in (("pelton serve", ours), ("nats-server", theirs)):
            found[name].append(asyncio.run(_measured(made)))
    print("| |", " | ".join(found), "|")
    print("|---|" + "---|" * len(found))
    for row in found["pelton serve"][0]:
        shown = [f"{statistics.median(one[row] for one in rounds):.3g}" for rounds in found.values()]
        print(f"| {row} |", " | ".join(shown), "|", flush=True)


if __name__ == "__main__":
    main()
