"""The cost of ``import pelton`` and of the first uses of its names: ``python -m benchmarks.studies.imports``.

Each program runs in its own interpreter, with cached byte code, ``ROUNDS`` times in turn with an empty one; the table
shows the median above the empty one's. You can pass other checkouts as arguments to compare; they come first.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 15
PROGRAMS = {
    "`import pelton`": "import pelton",
    "`pelton.ConfigError`": "import pelton; pelton.ConfigError",
    "`pelton.open`": "import pelton; pelton.open",
    "`pelton.sync.open`": "import pelton; pelton.sync.open",
    "`pelton --help`": "from pelton.cli import main\ntry: main.main(['--help'])\nexcept SystemExit: pass",
    "`import asyncio`": "import asyncio",
}
EMPTY = "pass"


def measured(source: Path, kept: str) -> dict[str, float]:
    """Return the seconds that each program takes beyond an empty one."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": kept}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times: dict[str, list[float]] = {name: [] for name in ("", *PROGRAMS)}
    for _ in range(ROUNDS + 1):
        for name, program in (("", EMPTY), *PROGRAMS.items()):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - began)
    # The first round compiles.
    medians = {name: statistics.median(each[1:]) for name, each in times.items()}
    return {name: medians[name] - medians[""] for name in PROGRAMS}


def main() -> None:
    """Print the table."""
    here = Path(__file__).parents[2]
    checkouts = [*(Path(text) for text in sys.argv[1:]), here]
    with tempfile.TemporaryDirectory() as kept:
        columns = [measured(checkout / "src", f"{kept}/{number}") for number, checkout in enumerate(checkouts)]
    print("| milliseconds |", " | ".join("here" if each == here else each.name for each in checkouts), "|")
    print("|---|" + "---|" * len(columns))
    for name in PROGRAMS:
        print(f"| {name} |", " | ".join(f"{column[name] * 1000:.0f}" for column in columns), "|")


if __name__ == "__main__":
    main()
