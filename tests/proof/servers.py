"""Rounds with nats-server beside Pelton: random programs and odd inputs on both, and networks that are cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

import hypothesis
from hypothesis import strategies as st

import pelton
from tests.cluster.network import network
from tests.differential.programs import programs as random_programs
from tests.differential.stage import stage
from tests.differential.steps import Step
from tests.fuzz.play import PLAYS
from tests.fuzz.run import Fuzzing
from tests.fuzz.sides import running_pair
from tests.kit.nats_server import nats_server
from tests.proof.record import Tried
from tests.sourcing import test_network as feeding

_PROGRAMS: Final = 1000
_INPUTS: Final = 60_000
_CUTS: Final = 30


async def programs(folder: Path, seed: int) -> Tried:
    """Play random programs on the engine and on nats-server; both do the same."""
    return await asyncio.to_thread(_compared, folder, seed)


def _compared(folder: Path, seed: int) -> Tried:
    with stage(folder) as ready:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=_PROGRAMS,
            deadline=None,
            database=None,
            # What is found is made smaller by who looks at it.
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(program=random_programs(), watched=st.booleans())
        def play(program: list[Step], watched: bool) -> None:
            ready.play(program, watched=watched)

        play()
        return Tried(programs=ready.pair.programs, operations=ready.pair.steps)


async def inputs(folder: Path, seed: int) -> Tried:
    """Send odd inputs to both servers; both answer alike."""

    def play() -> Tried:
        with running_pair(folder) as pair:
            fuzzing = Fuzzing(pair)
            fuzzing.play_many(_INPUTS, seed, list(PLAYS))
        return Tried(inputs=fuzzing.inputs.total(), violations=fuzzing.found)

    return await asyncio.to_thread(play)


async def networks(folder: Path, seed: int) -> Tried:
    """Cut and silence the network between two stores and a server, and kill server and feeders."""
    edge_path, away_path = str(folder / "edge"), str(folder / "away")
    tried = Counter[str]()
    with nats_server(folder / "nats") as server, ExitStack() as stack:
        async with pelton.open(edge_path) as edge, pelton.open(away_path) as away, network(server.port) as net:
            async with pelton.open(server.url) as hub:
                for jet in (edge, hub, away):
                    await jet.create_stream("log", subjects=["log.*"], allow_direct=True)
            play = feeding.Play(stack, Random(f"proof-{seed}"), edge, folder)
            await play.begin(server, net)
            for _ in range(_CUTS):
                tried["kill" if "killed" in await play.trouble() else "network"] += 1
            violations = [name async for name in _astray(play, away, server.url, edge)]
    return Tried(faults=dict(tried), operations=len(play.published), violations=violations)


async def _astray(play: feeding.Play, away: pelton.Jet, url: str, edge: pelton.Jet) -> AsyncIterator[str]:
    await feeding.arrived(away, len(play.published))
    async with pelton.open(url) as hub:
        for where, jet in (("edge", edge), ("hub", hub), ("away", away)):
            if await feeding.names_in(jet) != play.published:
                yield f"other messages, or in another order, in the stream at the {where}"
