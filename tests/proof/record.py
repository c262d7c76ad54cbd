"""What a proof has tried so far, and what it found: one JSON file, written again after each round."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

import msgspec

RECORD: Final = Path("benchmarks/results/proof.json")
CODE: Final = (Path("src/pelton"), Path("tests/proof"))


class Tried(msgspec.Struct, omit_defaults=True):
    """What one round has tried: its faults by kind, and how much ran under them; and what it found."""

    faults: dict[str, int] = {}
    programs: int = 0
    """Those that were played on nats-server as well."""
    inputs: int = 0
    models: int = 0
    """Programs and simulations, each judged by a model or by its history."""
    operations: int = 0
    violations: list[str] = []


class ProofRecord(msgspec.Struct):
    """A proof: of which code, from which seed, the rounds of each kind, their sums."""

    commit: str = ""
    """The commit at which it was begun; later ones count as well if they change none of the code."""
    code: str = ""
    """A checksum of the code: see `code_here`."""
    seed: int = 1
    seconds: float = 0.0
    rounds: dict[str, int] = {}
    """How many rounds of each kind are done: the next one has this number."""
    seeds: dict[str, list[int]] = {}
    """The seed and the last round of each kind. ``python -m tests.proof KIND:NUMBER --seed N`` plays one again."""
    faults: dict[str, int] = {}
    programs: int = 0
    inputs: int = 0
    models: int = 0
    operations: int = 0
    violations: list[str] = []
    mutants: dict[str, int] = {}
    """How many faults were ``planted`` into the code, and how many of them were ``found`` by a round."""

    @classmethod
    def of(cls, path: Path, commit: str, code: str, seed: int) -> Self:
        """Return the record to go on with: a new one if that at ``path`` is of other code, or from another seed."""
        if path.exists():
            found = msgspec.json.decode(path.read_bytes(), type=cls)
            if (found.code, found.seed) == (code, seed):
                return found
        return cls(commit=commit, code=code, seed=seed)

    def add(self, kind: str, number: int, tried: Tried) -> None:
        """Add a round."""
        self.rounds[kind] = max(self.rounds.get(kind, 0), number + 1)
        self.seeds[kind] = [self.seed, self.rounds[kind] - 1]
        add_counts(self.faults, tried.faults)
        self.programs += tried.programs
        self.inputs += tried.inputs
        self.models += tried.models
        self.operations += tried.operations
        self.violations += [f"{kind}:{number}: {what}" for what in tried.violations]

    def save(self, path: Path) -> None:
        """Write the record, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        os.replace(beside, path)


def code_here() -> str:
    """Return a checksum of what a record is about: Pelton's code, and that of the rounds."""
    files = sorted(path for place in CODE for path in place.rglob("*.py*") if path.suffix in (".py", ".pyi"))
    found = sha256()
    for path in files:
        found.update(b"%s %d\n" % (path.as_posix().encode(), path.stat().st_size) + path.read_bytes())
    return found.hexdigest()[:16]


def add_counts(to: dict[str, int], counts: Mapping[str, int]) -> None:
    """Add counts, those that are not zero."""
    for name, count in counts.items():
        if count:
            to[name] = to.get(name, 0) + count
