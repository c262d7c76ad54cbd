"""The order of the pages, as ``zensical.toml`` has it, and the ``llms.txt`` that is made from it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)|\[([^\]]*)\]\[[^\]]*\]")


class NavPage(NamedTuple):
    """A page in the navigation: the section that it is in, and its path below the pages."""

    section: str
    path: str


def nav() -> list[NavPage]:
    """Return the pages in the order of the navigation."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    return list(_pages("", project["nav"]))


def _pages(section: str, entries: list[Any]) -> Iterator[NavPage]:
    for entry in entries:
        if isinstance(entry, str):
            yield NavPage(section, entry)
            continue
        for title, below in entry.items():
            if isinstance(below, str):
                yield NavPage(section, below)
            else:
                yield from _pages(section or title, below)


def llms_txt(pages: Path) -> str:
    """Return the text for programs that read documentation: one line for each page, with its address and its gist."""
    lines = ["# Pelton", "", f"> {_gist((pages / 'index.md').read_text())}"]
    section = None
    for page in nav():
        if page.section != section:
            section = page.section
            lines += ["", f"## {section or 'Start'}", ""]
        text = (pages / page.path).read_text()
        address = re.sub(r"(?:^|(?<=/))index\.md$", "", page.path).removesuffix(".md")
        lines.append(f"- [{_title(text)}]({address + '/' if address and address[-1] != '/' else address or './'}): {_gist(text)}")
    return "\n".join(lines) + "\n"


def _title(text: str) -> str:
    found = _TITLE.search(text)
    assert found is not None
    return found[1].replace("`", "")


def _gist(text: str) -> str:
    """Return the first sentence of a page."""
    after = _TITLE.split(text, 1)[2]
    blocks = [block for block in re.split(r"\n\s*\n", after) if block.strip() and not block.startswith(("#", "```", "|", "!", ":::"))]
    plain = " ".join(_LINK.sub(lambda found: found[1] or found[2] or "", blocks[0]).split()) if blocks else _title(text)
    return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
