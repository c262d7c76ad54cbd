"""What the writers of type stubs share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def formatted(text: str, target: Path) -> str:
    """Return the text of a stub with sorted imports and names, formatted as the file that it will be."""
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix-only", "--select", "I,RUF022", "--quiet"], ["format"]):
        done = subprocess.run(
            [ruff, *command, "--stdin-filename", str(target), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text
