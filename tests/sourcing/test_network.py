"""Two stores and a server between them, whose network is cut, silent and restored, while all are killed in turn.

Messages published at the edge are fed to a stream of a real server, and from there to another store. At points drawn
from a seeded generator the network resets all connections, or silently drops everything, or the server or one of the
two feeding processes is killed. ``--kills`` sets how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Final

import pytest

import pelton
from pelton.cluster import connection
from tests.cluster.network import Network, network
from tests.crash.roles import name_of, payload
from tests.kit.nats_server import NatsServer, nats_server
from tests.storage.processes import Child

_PER_TROUBLE: Final = 5
_LIMIT_S: Final = 120
_SUBJECTS: Final = 5


async def feeder(pipe: Connection, origin: str, target: str) -> None:
    """Feed from one address to another until killed."""
    connection._SILENCE_S = 0.5  # type: ignore[misc]  # a child of its own, which must not wait for long
    while True:
        try:
            async with pelton.open(origin) as source, pelton.open(target) as to:
                await source.feed("log", to)
        except pelton.StoreError:
            # It may begin while the network is away.
            await asyncio.sleep(0.05)


class Play:
    """The edge, the network, the server and the two feeders; and what happens to them."""

    def __init__(self, stack: ExitStack, random: Random, edge: pelton.Jet, home: Path) -> None:
        self._stack = stack
        self._random = random
        self._edge = edge
        self._home = home
        self.published: list[str] = []
        self._feeders: dict[str, Child] = {}

    async def begin(self, server: NatsServer, net: Network) -> None:
        self._server, self._net = server, net
        self._start("up")
        self._start("down")

    def _start(self, which: str) -> None:
        up = which == "up"
        addresses = (str(self._home / "edge"), self._net.url) if up else (self._net.url, str(self._home / "away"))
        self._feeders[which] = self._stack.enter_context(Child(feeder, *addresses))

    async def publish(self, most: int = 200) -> int:
        """Publish some messages; return their size in bytes."""
        names = [f"m{len(self.published) + n}" for n in range(self._random.randrange(1, most))]
        messages = [(f"log.{self._random.randrange(_SUBJECTS)}", payload(name)) for name in names]
        await self._edge.publish_batch(messages)
        self.published += names
        return sum(len(data) for _, data in messages)

    async def trouble(self) -> str:
        """Cause a failure while messages are in flight, and end it; return its name."""
        mark = self._net.carried
        mark += self._random.randrange(await self.publish())
        await until(lambda: self._net.carried >= mark)
        causes = (self._cut, self._silent, self._lost_in_silence, self._killed, self._server_killed)
        cause = self._random.choice(causes)
        await cause()
        self._net.mend()
        return cause.__name__

    async def _cut(self) -> None:
        self._net.cut()
        await self.publish()

    async def _silent(self) -> None:
        self._net.silence()
        await self.publish()
        enough = self._random.randrange(1, 6)
        await until(lambda: self._net.held >= enough)

    async def _lost_in_silence(self) -> None:
        await self._silent()
        if self._random.random() < 0.5:
            await self._killed()
        self._net.reset()

    async def _killed(self) -> None:
        which = self._random.choice(("up", "down"))
        self._feeders[which].kill()
        await self.publish()
        self._start(which)

    async def _server_killed(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await self.publish()
        await asyncio.to_thread(self._server.start)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.001)


async def test_what_is_fed_survives_cuts_and_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    edge_path, away_path = str(tmp_path / "edge"), str(tmp_path / "away")
    with nats_server(tmp_path / "nats") as server, ExitStack() as stack:
        async with pelton.open(edge_path) as edge, pelton.open(away_path) as away, network(server.port) as net:
            async with pelton.open(server.url) as hub:
                for jet in (edge, hub, away):
                    await jet.create_stream("log", subjects=["log.*"], allow_direct=True)
            play = Play(stack, Random(20251121), edge, tmp_path)
            await play.begin(server, net)
            for _ in range(int(request.config.getoption("--kills")) // _PER_TROUBLE):
                await play.trouble()
            await arrived(away, len(play.published))
            for jet in (edge, away):
                assert await names_in(jet) == play.published
            async with pelton.open(server.url) as hub:
                assert await names_in(hub) == play.published


async def arrived(away: pelton.Jet, number: int) -> None:
    stream = await away.stream("log")
    async with asyncio.timeout(_LIMIT_S):
        while (await stream.info()).state.messages < number:
            await asyncio.sleep(0.02)


async def names_in(jet: pelton.Jet) -> list[str]:
    """Return the name of every message, each read and checked, in order."""
    stream, seq, names = await jet.stream("log"), 1, list[str]()
    while messages := await stream.get_messages(seq=seq):
        seq = messages[-1].seq + 1
        names += [name_of(message.data) for message in messages]
    return names
