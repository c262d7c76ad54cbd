"""Random programs on a served store and on a real nats-server, both reached by the same client.

`make test` runs a few, always the same ones; `make differential` runs thousands, new ones each time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import pelton
from pelton.engine import Engine
from pelton.runtime import system_runtime
from pelton.server import Endpoint, Server, ServerSettings, StoreSettings
from tests.differential.programs import programs
from tests.differential.stage import Stage
from tests.differential.stage import stage as on_stage
from tests.differential.steps import Step


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home, numbers = tmp_path_factory.mktemp("served"), count()

    @asynccontextmanager
    async def served() -> AsyncIterator[tuple[pelton.Jet, Engine]]:
        async with on_server(home / f"{next(numbers)}.pelton") as found:
            yield found

    with on_stage(tmp_path_factory.mktemp("nats"), served) as ready:
        yield ready
        pair = ready.pair
        print(f"\n{pair.programs} programs, {pair.steps} steps, {pair.comparisons} comparisons")


@asynccontextmanager
async def on_server(path: Path) -> AsyncIterator[tuple[pelton.Jet, Engine]]:
    """Serve a new store, and open it as a cluster; what it stores need not be durable here."""
    store = StoreSettings(path=str(path), sync="off")
    server = Server(ServerSettings(stores={"$G": store}, endpoints=(Endpoint(port=-1),)), system_runtime())
    await server.start()
    account = server.account("$G")
    assert account is not None
    assert account.link is not None
    try:
        async with pelton.open(f"nats://{server.endpoints[0]}", message_ids=False) as jet:
            yield jet, account.link.engine
    finally:
        await server.close()


@settings(derandomize=settings().max_examples == settings.get_profile("default").max_examples)
@given(program=programs(), watched=st.booleans())
def test_a_served_store_and_a_server_do_the_same(stage: Stage, program: list[Step], watched: bool) -> None:
    lines = "\n".join(f"    {step!r}," for step in program)
    note(f"stage.play([\n{lines}\n], watched={watched})")
    stage.play(program, watched=watched)
