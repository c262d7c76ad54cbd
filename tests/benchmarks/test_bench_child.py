"""The request that is sent to the measuring process, and the outcome of a failed one."""

from pathlib import Path

from benchmarks.case import Case, Contender, Metric, Run
from benchmarks.child import Request
from benchmarks.runner import run_case


def test_request_survives_the_crossing() -> None:
    run = Run(Path("/a"), Path("/b"), seconds=0.5, drain=1, samples=2, big=3)
    request = Request("peers.toy:run", {"always": True}, run)
    assert Request.decode(request.encode()) == request


def test_a_failing_contender_is_a_line_and_not_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path / "case", seconds=0.1, drain=1, samples=1, big=1)
    broken = Contender("broken", "peers.no_such_module:run", "none")
    case = Case("toy", "A toy", "", (Metric("rate", "msgs/s"),), (broken,))
    said: list[str] = []
    outcome = run_case(case, 1, run, said.append)
    assert outcome.rounds == {"broken": {"rate": [None]}}
    assert "no_such_module" in outcome.failures["broken"]
    assert not (tmp_path / "case").exists()
