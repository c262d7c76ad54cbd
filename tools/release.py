"""Writes a new version: ``python -m tools.release 0.2.0`` sets it everywhere and dates the changelog's open section.

It changes files and nothing else: look at them, commit, tag, and upload what ``make packages`` has built.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_OPEN: Final = re.compile(r"^## (\S+) \(not released\)$", re.MULTILINE)


class ReleaseError(Exception):
    """The version cannot be released; the text says why."""


def released(changelog: str, version: str, day: date) -> str:
    """Return the changelog with its open section dated. Raises ReleaseError if there is none."""
    if not _OPEN.search(changelog):
        raise ReleaseError("CHANGELOG.md has no section '## VERSION (not released)': write down what is new first")
    return _OPEN.sub(f"## {version} ({day.isoformat()})", changelog, count=1)


def numbered(text: str, version: str, pattern: str) -> str:
    """Return a file's text with another version in the place that ``pattern`` captures. Raises ReleaseError."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ReleaseError(f"there is no version at {pattern!r}")
    return text[: found.start(1)] + version + text[found.end(1) :]


_PLACES: Final = {"pyproject.toml": r'^version = "(.+)"$', "src/pelton/_version.py": r'^VERSION = "(.+)"$'}


def release(root: Path, version: str, day: date) -> list[Path]:
    """Write the version into the project at ``root``; return the changed files. Raises ReleaseError."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is not a version: give one such as 0.2.0 or 0.2.0rc1")
    texts = {root / name: numbered((root / name).read_text(), version, where) for name, where in _PLACES.items()}
    changelog = root / "CHANGELOG.md"
    texts[changelog] = released(changelog.read_text(), version, day)
    for path, text in texts.items():
        path.write_text(text)
    return list(texts)


def main() -> int:
    """Release the version on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="such as 0.2.0")
    try:
        changed = release(ROOT, parser.parse_args().version, datetime.now(UTC).date())
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print("changed:", *(path.relative_to(ROOT) for path in changed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
