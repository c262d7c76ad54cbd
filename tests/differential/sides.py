"""Runs a program on both sides and compares the observations, step by step and at the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from itertools import cycle
from typing import Any

import pelton
from pelton import api
from pelton.engine import Engine
from tests.differential.normal import avoided, plain, refusal
from tests.differential.steps import Side, Step

_PATIENCE = 10
_ANSWER_S = 5.0
_COULD_NOT = {"refused": 10049}


Opened = Callable[[], AbstractAsyncContextManager[tuple[pelton.Jet, Engine]]]


class DifferenceError(AssertionError):
    """The two sides were seen to differ."""


@cache
def _kind(what: str) -> type[DifferenceError]:
    """Return a separate class for each kind of difference: Hypothesis shrinks and reports each separately."""
    return type(f"Differs[{what}]", (DifferenceError,), {})


class Pair:
    """Accounts of a NATS server, and for each program a new store of ours beside it. Counts the comparisons.

    ``opened`` opens ours, with the engine behind it: embedded, or served and reached as a cluster is.
    """

    def __init__(self, servers: Sequence[pelton.Jet], opened: Opened) -> None:
        self._opened = opened
        # Used in turn: a server deletes a stream's files a moment after its reply.
        self._servers = cycle(servers)
        self.programs = self.steps = self.comparisons = 0

    async def play(self, program: Sequence[Step], *, watched: bool = True) -> None:
        """Run a program on both sides; ``watched`` also compares everything after each step. Raises DifferenceError."""
        self.programs += 1
        server = next(self._servers)
        async with self._opened() as (ours, engine):
            mine, theirs = Side(ours, self.programs, engine), Side(server, self.programs)
            try:
                for number, step in enumerate(program):
                    if avoided(step, mine):
                        continue
                    self.steps += 1
                    await self._step(step, number, mine, theirs)
                    if watched:
                        await self._look(f"after step {number}, {step}", mine, theirs, messages=False)
                await self._look("at the end", mine, theirs, messages=True)
            finally:
                for name in await server.stream_names():
                    await server.delete_stream(name)

    async def _step(self, step: Step, number: int, mine: Side, theirs: Side) -> None:
        got, wanted = await observed(step.run(mine), mine), await _insistent(step, theirs)
        self.comparisons += 1
        if got == wanted:
            return
        if not _is_early(got, wanted):
            raise _difference(f"step {number}, {step}", got, wanted)
        await self._look(f"a moment after step {number}, {step}", mine, theirs, messages=False)

    async def _look(self, when: str, mine: Side, theirs: Side, *, messages: bool) -> None:
        """Compare everything there is. A server may take a moment for effects beside its reply."""
        got = await everything(mine, messages)
        self.comparisons += 1
        for _ in range(_PATIENCE):
            wanted = await everything(theirs, messages)
            if got == wanted:
                return
            await asyncio.sleep(0.005)
        raise _difference(when, got, wanted)


async def observed(work: Any, side: Side) -> Any:
    """Return an answer, or the codes of a refusal, as plain data that both sides can agree on."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return plain(await work, side.renumbered)
    except api.ApiError as error:
        return refusal(error)
    except TimeoutError:
        return {"refused": "no answer"}


async def _insistent(step: Step, theirs: Side) -> Any:
    """Take a step on the server, again if it could not make a stream: seen once in 20,000 programs, under load."""
    for _ in range(_PATIENCE):
        wanted = await observed(step.run(theirs), theirs)
        if wanted != _COULD_NOT:
            break
        await asyncio.sleep(0.1)
    return wanted


async def everything(side: Side, messages: bool) -> dict[str, Any]:
    """Return all streams with their consumers, and with their messages if requested."""
    found: dict[str, Any] = {}
    for name in await side.jet.stream_names():
        request = api.StreamInfoRequest(name=name, subjects_filter=">", deleted_details=True)
        info = await side.call(request)
        consumers = await side.call(api.ConsumerList(stream=name))
        found[name] = {"stream": plain(info), "consumers": plain(consumers.consumers, side.renumbered)}
        if messages:
            state = info.state
            wanted = range(state.first_seq, state.last_seq + 1) if state.messages else ()
            found[name]["messages"] = [
                await observed(side.call(api.MsgGet(stream=name, seq=seq)), side) for seq in wanted if seq > 0
            ]
    return found


def _is_early(got: Any, wanted: Any) -> bool:
    """Whether a server may only be late in counting a consumer's pending messages.

    Consumers learn of new messages a moment after their acks: of 600 resets right after a publish 5 counted too few.
    """
    found = _differences("", got, wanted)
    return all(path.endswith("num_pending") and isinstance(b, int) and b < a for path, a, b in found)


def _difference(where: str, got: Any, wanted: Any) -> DifferenceError:
    found = _differences("", got, wanted)
    lines = [f"{where}:", *(f"  {path}: engine {a!r}, server {b!r}" for path, a, b in found)]
    step = re.sub(r"\d+, |\(.*", "", where)
    return _kind(f"{step} {re.sub('[0-9]+', '', found[0][0])}")("\n".join(lines))


def _differences(path: str, got: Any, wanted: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(got, dict) and isinstance(wanted, dict) and ("refused" in got) == ("refused" in wanted):
        keys = [*got, *(key for key in wanted if key not in got)]
        return [
            found
            for key in keys
            for found in _differences(f"{path}.{key}", got.get(key, "(none)"), wanted.get(key, "(none)"))
        ]
    if isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        pairs = enumerate(zip(got, wanted, strict=True))
        return [found for n, (a, b) in pairs for found in _differences(f"{path}[{n}]", a, b)]
    return [] if got == wanted else [(path.lstrip("."), got, wanted)]
