"""Notices when Python files change, by looking at them again and again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceFiles:
    """The Python files under a folder; those of hidden folders and of virtual environments are skipped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Return the files that were written, created or removed since the last call."""
        before, self._seen = self._seen, self._look()
        return sorted(
            os.path.relpath(name, self._folder)
            for name in before.keys() | self._seen.keys()
            if before.get(name) != self._seen.get(name)
        )

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder, names, files in os.walk(self._folder):
            names[:] = [name for name in names if not _is_skipped(Path(folder, name))]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    try:
                        status = os.stat(path)
                    except FileNotFoundError:  # removed since
                        continue
                    found[path] = (status.st_mtime_ns, status.st_size)
        return found


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _SKIPPED or (folder / "pyvenv.cfg").exists()
