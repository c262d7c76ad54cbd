"""A store in a file, with two openers on one manual clock: what the state machines drive."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import pelton
from pelton.testing import manual_runtime, recount

T = TypeVar("T")


class StoreMachine(RuleBasedStateMachine):
    """Runs coroutines on its own event loop. ``jets`` are two openers, as two processes would be."""

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
        self.jets = [await pelton.open(self.path, sync="off", runtime=self.runtime) for _ in range(2)]

    async def _close(self) -> None:
        for jet in self.jets:
            await jet.close()

    @property
    def now(self) -> int:
        return self.runtime.clock.now()

    @rule(seconds=st.sampled_from([0.05, 0.2, 1.0, 7.0]))
    def advance(self, seconds: float) -> None:
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
