"""What an installation of this project tells others: its entry points, in a folder for ``sys.path``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def write_entry_points(folder: Path) -> None:
    """Write the entry points that pyproject.toml declares, as an installed distribution has them."""
    told = folder / "pelton_entries-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: pelton-entries\nVersion: 1.0\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (told / "entry_points.txt").write_text("\n".join(lines) + "\n")
