"""The two sides, set up: a server with some accounts, and the event loop of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pelton
from pelton.engine import Engine
from tests.differential.sides import Opened, Pair
from tests.differential.steps import Step
from tests.kit.nats_server import nats_server

_ACCOUNTS = 16


class Stage:
    """The pair, and its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pair: Pair) -> None:
        self._loop = loop
        self.pair = pair

    def play(self, program: Sequence[Step], *, watched: bool) -> None:
        """Run a program. Raises DifferenceError."""
        self._loop.run_until_complete(self.pair.play(program, watched=watched))


@asynccontextmanager
async def embedded() -> AsyncIterator[tuple[pelton.Jet, Engine]]:
    """Open a new store in memory."""
    async with pelton.open("memory:") as jet:
        assert isinstance(jet.backend, Engine)
        yield jet, jet.backend


@contextmanager
def stage(home: Path, opened: Opened = embedded) -> Iterator[Stage]:
    """Run a server for as long as the context lasts; ``opened`` opens the stores to compare with it."""
    account = "a%d { jetstream: enabled, users: [{ user: u%d, password: p }] }"
    accounts = "\n".join(account % (number, number) for number in range(_ACCOUNTS))
    loop = asyncio.new_event_loop()
    with nats_server(home, extra=f"accounts {{ {accounts} }}") as server:
        urls = [server.url.replace("//", f"//u{number}:p@") for number in range(_ACCOUNTS)]

        async def connect() -> list[pelton.Jet]:
            return [await pelton.open(url, message_ids=False) for url in urls]

        async def close(jets: list[pelton.Jet]) -> None:
            for jet in jets:
                await jet.close()

        jets = loop.run_until_complete(connect())
        yield Stage(loop, Pair(jets, opened))
        loop.run_until_complete(close(jets))
    loop.close()
