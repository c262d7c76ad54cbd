"""Finds the examples of the public names: the sections of the pages in ``docs/reference/examples``, by their titles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "reference" / "examples"
_SECTION: Final = re.compile(r"^## (`[^\n]+`)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def examples() -> dict[str, str]:
    """Return the Markdown of each example, by the name that it is about: ``Queue.cancel``, ``open``."""
    found: dict[str, str] = {}
    for page in sorted(FOLDER.glob("*.md")):
        for title, text in _SECTION.findall(page.read_text()):
            for name in re.findall(r"`([\w.]+)`", title):
                if name in found:
                    raise ValueError(f"{page}: a second example of {name}")
                found[name] = text.strip()
    return found
