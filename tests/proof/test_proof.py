"""A proof in short: each kind of round is played once, nothing is found, and its record says what was tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.proof.__main__ import round_of
from tests.proof.record import ProofRecord, Tried
from tests.proof.rounds import ROUNDS


@pytest.mark.parametrize("kind", ROUNDS)
async def test_a_round_breaks_no_promise(kind: str) -> None:
    tried = await round_of(kind, 0, 1)
    assert tried.violations == []
    assert sum(tried.faults.values()) + tried.programs + tried.inputs > 0


def test_a_proof_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    command = [sys.executable, "-m", "tests.proof", "--record", str(path), "--hours"]
    subprocess.run([*command, "0.0005"], check=True)
    first = msgspec.json.decode(path.read_bytes(), type=ProofRecord)
    assert sum(first.rounds.values()) > 0
    assert first.violations == []
    # Its time is over.
    done = subprocess.run([*command, "0.0005"], check=True, capture_output=True, text=True)
    assert msgspec.json.decode(path.read_bytes(), type=ProofRecord) == first
    assert first.commit in done.stdout


def test_a_record_counts_what_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    record = ProofRecord.of(path, "abc", 7)
    record.add("kills", 0, Tried(faults={"kill": 32, "stop": 0}, operations=9))
    record.add("kills", 2, Tried(faults={"kill": 8}, programs=4, violations=["a message is lost"]))
    record.save(path)
    again = ProofRecord.of(path, "abc", 7)
    assert again == record
    assert (again.faults, again.programs, again.operations) == ({"kill": 40}, 4, 9)
    assert (again.rounds, again.seeds) == ({"kills": 3}, {"kills": [7, 2]})
    assert again.violations == ["kills:2: a message is lost"]
    # Of other code, or from another seed, it begins anew.
    assert ProofRecord.of(path, "abd", 7).rounds == ProofRecord.of(path, "abc", 8).rounds == {}
