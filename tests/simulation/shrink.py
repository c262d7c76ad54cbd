"""Makes a program that breaks a promise as small as it gets: what it does not need is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from tests.simulation.judge import Broken, judge
from tests.simulation.program import Act, Program
from tests.simulation.stage import play

_MOST: Final = 400


def broken_by(program: Program) -> list[Broken]:
    """Play a program, and return what it breaks."""
    return judge(program, play(program).history)


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return the smallest program found that still ``fails``, after some hundred tries."""
    left = _MOST

    def still(smaller: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(smaller)

    while left > 0:
        before = program
        program = _fewer_acts(program, still)
        for smaller in _simpler(program):
            if still(smaller):
                program = smaller
                break
        if program == before:
            break
    return program


def _fewer_acts(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Leave out acts: halves, then smaller parts, then each."""
    size = len(program.acts)
    while size:
        place = 0
        while place < len(program.acts):
            smaller = replace(program, acts=program.acts[:place] + program.acts[place + size :])
            if fails(smaller):
                program = smaller
            else:
                place += size
        size //= 2
    return program


def _simpler(program: Program) -> Iterator[Program]:
    """Yield programs that are a little simpler."""
    if program.processes > 1:
        yield replace(program, processes=program.processes - 1)
    for name in ("locks", "election"):
        if getattr(program, name) and program.queue:
            yield replace(program, **{name: False})
    for place, act in enumerate(program.acts):
        for smaller in _simpler_act(act):
            yield replace(program, acts=[*program.acts[:place], smaller, *program.acts[place + 1 :]])


def _simpler_act(act: Act) -> Iterator[Act]:
    for place in range(len(act.moves)):
        yield replace(act, moves=act.moves[:place] + act.moves[place + 1 :])
    for name in act.options:
        if act.kind == "enqueue":
            yield replace(act, options={key: value for key, value in act.options.items() if key != name})
    if act.kind == "flow" and len(act.parts) > 1:
        yield replace(act, parts=act.parts[:-1])
