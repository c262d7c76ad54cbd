"""A proof in short: its rounds break no promise, its record says what was tried, each planted fault has its place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.proof.mutants import MUTANTS
from tests.proof.page import PAGE, figures, record_at, with_figures
from tests.proof.record import RECORD, ProofRecord, Tried
from tests.proof.rounds import ROUNDS
from tests.proof.sabotage import changed


def test_a_proof_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    command = [sys.executable, "-m", "tests.proof", "--record", str(path), "--lanes", "1", "--hours"]
    subprocess.run([*command, "0.0005"], check=True)
    first = msgspec.json.decode(path.read_bytes(), type=ProofRecord)
    assert sum(first.rounds.values()) > 0
    assert first.violations == []
    # Its time is over.
    done = subprocess.run([*command, "0.0005"], check=True, capture_output=True, text=True)
    assert msgspec.json.decode(path.read_bytes(), type=ProofRecord) == first
    assert first.commit in done.stdout


def test_each_planted_fault_is_of_code_that_is_there_once() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 40
    for one in MUTANTS:
        ast.parse(changed(one))
        assert {judge.partition(":")[0] for judge in one.judges} <= ROUNDS.keys(), one.name


def test_the_page_for_users_has_the_figures_of_the_record() -> None:
    page = PAGE.read_text()
    assert page == with_figures(page, record_at(RECORD)), "python -m tests.proof --page writes them"


def test_figures_are_those_of_a_record() -> None:
    record = ProofRecord(
        "0123456789ab", "c0de", seconds=1800, faults={"kill": 2400}, mutants={"planted": 9, "found": 8}
    )
    shown = figures(record)
    assert "| processes killed (SIGKILL) | 2,400 |" in shown
    assert "| planted faults that the judges found | 8 |" in shown
    assert "0.5 hours, code `c0de`, begun at `0123456789`" in shown


def test_a_record_counts_what_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    record = ProofRecord.of(path, "abc", "c0de", 7)
    record.add("kills", 0, Tried(faults={"kill": 32, "stop": 0}, operations=9))
    record.add("kills", 2, Tried(faults={"kill": 8}, programs=4, violations=["a message is lost"]))
    record.save(path)
    again = ProofRecord.of(path, "abc", "c0de", 7)
    assert again == record
    assert (again.faults, again.programs, again.operations) == ({"kill": 40}, 4, 9)
    assert (again.rounds, again.seeds) == ({"kills": 3}, {"kills": [7, 2]})
    assert again.violations == ["kills:2: a message is lost"]
    # A commit of a page changes nothing; of other code, or from another seed, it begins anew.
    assert ProofRecord.of(path, "abd", "c0de", 7) == record
    assert ProofRecord.of(path, "abc", "c0df", 7).rounds == ProofRecord.of(path, "abc", "c0de", 8).rounds == {}
