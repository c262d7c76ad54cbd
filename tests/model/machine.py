"""A store in a file, with four openers on one manual clock: what the state machines drive."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import pelton
from pelton.engine.salvage import recount
from pelton.testing import manual_runtime
from tests.model.processes import Host

T = TypeVar("T")

_OPENERS: Final = 4
openers: Final = st.integers(0, _OPENERS - 1)


class StoreMachine(RuleBasedStateMachine):
    """Runs coroutines on its own event loop. ``jets`` are the openers, as several processes would be."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.path = str(Path(self.folder.name) / "store")
        self.runtime = manual_runtime()
        self.jets: list[pelton.Jet] = []
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self) -> None:
        self.jets = [await pelton.open(self.path, sync="off", runtime=self.runtime) for _ in range(_OPENERS)]

    async def _close(self) -> None:
        for jet in self.jets:
            await jet.close()

    @property
    def now(self) -> int:
        return self.runtime.clock.now()

    @rule(seconds=st.sampled_from([0.05, 0.2, 1.0, 7.0]))
    def advance(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.runtime.clock.advance(seconds)

    @precondition(lambda self: self.jets)
    @rule()
    def reopen(self) -> None:
        self.run(self._close())
        self.run(self._open())

    def check_rows(self) -> None:
        problems = recount(self.path)
        assert problems == [], problems

    def teardown(self) -> None:
        self.run(self._close())
        self.loop.close()
        self.folder.cleanup()


_hosts: Final[list[Host]] = []
"""The processes of the machines below, one machine after the other."""


class ProcessesMachine(StoreMachine):
    """The same with openers in processes of their own, which may be killed between two steps."""

    async def _open(self) -> None:
        _hosts.extend(Host() for _ in range(_OPENERS - len(_hosts)))
        for number in range(_OPENERS):
            await self._open_one(number)
        self.jets = [host.jet for host in _hosts]

    async def _open_one(self, number: int) -> None:
        await _hosts[number].itself.open(self.path, number, self.runtime.clock.monotonic())

    async def _close(self) -> None:
        for host in _hosts:
            await host.itself.close()
            host.leave()

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        for host in _hosts:
            self.run(host.itself.advance(seconds))

    @precondition(lambda self: self.jets)
    @rule(opener=openers)
    def kill(self, opener: int) -> None:
        _hosts[opener].kill()
        _hosts[opener] = Host()
        self.run(self._open_one(opener))
        self.jets[opener] = _hosts[opener].jet
