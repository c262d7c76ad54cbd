"""``python -m tests.soak [minutes] [seed]``: soak the delivery half, and report the findings."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.run import Stage, for_minutes


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="pelton-soak-"))
    print(f"soak of {minutes:g} minutes, seed {seed}, in {folder}", flush=True)
    (folder / "history").mkdir()
    result = asyncio.run(Stage(folder / "store", folder / "history", seed).run(for_minutes(minutes)))
    print(result)
    return 1 if result.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
