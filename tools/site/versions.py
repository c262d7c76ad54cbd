"""Puts a built site beside those of other versions, so that a reader can choose."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Final

_REDIRECT: Final = """<!doctype html>
<meta charset="utf-8">
<title>Pelton</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">Pelton {version}</a>
"""


def add_version(built: Path, sites: Path, version: str) -> Path:
    """Move the built site into the folder of its version, list it in ``versions.json``, and lead the root to it.

    The newest version is first in the list; one that is built again replaces its folder.
    """
    target = sites / version
    shutil.rmtree(target, ignore_errors=True)
    sites.mkdir(parents=True, exist_ok=True)
    shutil.move(built, target)
    if (lost := target / "404.html").is_file():
        # Its links are from the root, as it is shown for any address; that is where all versions are.
        lost.write_text(re.sub(r'((?:href|src)=")/(?!/)', rf"\1/{version}/", lost.read_text()))
    others = {path.name for path in sites.iterdir() if path.is_dir()}
    ordered = sorted(others, key=_numbers, reverse=True)
    entries = [
        {"version": each, "title": each, "aliases": ["latest"] if each == ordered[0] else []} for each in ordered
    ]
    (sites / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    (sites / "index.html").write_text(_REDIRECT.format(version=ordered[0]))
    return target


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]
