"""The figures of the record on the page for users: ``make proof`` writes them when it ends, and ``--page`` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tests.proof.record import ProofRecord

PAGE: Final = Path("docs/explanation/reliability.md")
_BEGIN: Final = "<!-- figures: written by make proof -->\n"
_END: Final = "<!-- end of figures -->\n"
_NONE: Final = "There is no record of this code yet: `make proof HOURS=0.5` makes one, in half an hour on two cores.\n"
_FAULTS: Final = {
    "kill": "processes killed (SIGKILL)",
    "stop": "processes stopped and continued (SIGSTOP)",
    "power": "power losses",
    "sync": "failed syncs among them",
    "disk": "full disks",
    "clock": "jumps of the wall clock",
    "network": "networks cut or silent",
    "cancellation": "calls cancelled",
    "flip": "stores with flipped bits",
    "rekey": "exchanges of a store's key, killed on the way",
    "migration": "migrations from older versions, killed on the way",
}


def figures(record: ProofRecord | None) -> str:
    """Return the figures of a record as a table, or that there is none."""
    if record is None:
        return _NONE
    rows = [(text, record.faults.get(kind, 0)) for kind, text in _FAULTS.items()]
    rows += [
        ("random programs, on a file and on nats-server", record.programs),
        ("odd inputs, to a served file and to nats-server", record.inputs),
        ("random programs and simulations, each judged by a model or by its history", record.models),
        ("operations under faults", record.operations),
        ("**promises broken**", len(record.violations)),
    ]
    if record.mutants:
        rows.append(("planted faults", record.mutants["planted"]))
        rows.append(("planted faults that the judges found", record.mutants["found"]))
    table = "".join(f"| {text} | {count:,} |\n" for text, count in rows)
    code = f"code `{record.code}`, begun at `{record.commit[:10]}`"
    about = f"Seed {record.seed}, {record.seconds / 3600:.1f} hours, {code}:\n"
    return f"{about}\n| tried | how often |\n|---|---:|\n{table}"


def with_figures(page: str, record: ProofRecord | None) -> str:
    """Return the page with the figures of a record."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin, f"{PAGE} has no place for figures: {_BEGIN}"
    assert end, f"{PAGE} has no end of figures: {_END}"
    return f"{before}{_BEGIN}\n{figures(record)}\n{_END}{after}"


def record_at(path: Path) -> ProofRecord | None:
    """Return the record at a path, None if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=ProofRecord) if path.exists() else None


def write_page(record: ProofRecord | None) -> None:
    """Write the figures of a record to the page."""
    PAGE.write_text(with_figures(PAGE.read_text(), record))
