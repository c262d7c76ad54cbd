"""Simulated processes of a store: whatever befalls them no promise is broken, and what once broke one is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pelton.locks.keeper import HeldLease
from pelton.queue.run.admission import Admission
from pelton.queue.run.steps import JobSteps
from tests.simulation.program import Act, Program, drawn
from tests.simulation.shrink import broken_by, shrunk
from tests.simulation.stage import play

_LINES = Path(__file__).with_name("kept.jsonl").read_bytes().splitlines()
KEPT = [msgspec.json.decode(line, type=Program) for line in _LINES]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(100, 150), id="long")])
def test_no_promise_is_broken(seeds: range) -> None:
    for seed in seeds:
        assert broken_by(drawn(seed)) == [], f"python -m tests.simulation {seed}:{seed + 1}"


@pytest.mark.parametrize("program", KEPT, ids=lambda program: program.why[:60])
def test_what_once_broke_a_promise_does_not_any_more(program: Program) -> None:
    assert broken_by(program) == []


_EVERYTHING = Program(
    seed=1,
    processes=2,
    locks=True,
    election=True,
    acts=[
        Act(at=1.0, kind="enqueue", number=1, job="wash", moves=[["step", "s", 0.4], ["work", 3.0]]),
        Act(at=1.0, kind="enqueue", number=2, job="wash", moves=[["step", "s", 0.0], ["fail", 2]], slot=1),
        Act(at=2.0, kind="kill", slot=0, seconds=0.5),
        Act(at=3.0, kind="stop", slot=1, seconds=3.0),
    ],
)


def test_equal_seeds_make_equal_histories() -> None:
    """In another process, too: so what a seed breaks can be looked into."""
    code = "from tests.simulation.test_simulation import play, _EVERYTHING; print(play(_EVERYTHING).digest)"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    one = play(_EVERYTHING)
    assert one.digest == other.stdout.strip()
    assert {"start", "called", "hold", "outcome"} <= {note.kind for note in one.history}
    assert play(msgspec.structs.replace(_EVERYTHING, seed=2)).digest != one.digest


def test_a_program_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is done again by a later attempt: all that is needed is a job that fails after it."""
    monkeypatch.setattr(JobSteps, "_read", _nothing)

    def fails(program: Program) -> bool:
        return any(one.rule == "step" for one in broken_by(program))

    small = shrunk(msgspec.structs.replace(_EVERYTHING, locks=False, election=False), fails)
    assert small.processes == 1
    [act] = small.acts
    assert [move[0] for move in act.moves] == ["step", "fail"]


async def _nothing(*_: object) -> dict[str, object]:
    return {}


async def _enters(*_: object) -> None: ...


@pytest.mark.parametrize("planted", ["limit", "token"])
def test_what_is_planted_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules hold not just because they look at nothing."""
    if planted == "limit":
        monkeypatch.setattr(Admission, "enter", _enters)
        acts = [Act(at=0.7, kind="limit", options={"concurrency": 1})]
        acts += [Act(at=2.0, kind="enqueue", number=number, job="wash", moves=[["work", 1.0]]) for number in (1, 2)]
        program = Program(seed=1, processes=1, acts=acts)
    else:
        monkeypatch.setattr(HeldLease, "is_over", lambda self, now: self.state != "held")
        acts = [Act(at=float(at), kind="stop", slot=at // 6 % 2, seconds=5.0) for at in range(2, 74, 6)]
        program = Program(seed=1, processes=2, queue=False, locks=True, acts=acts)
    assert planted in {one.rule for one in broken_by(program)}
