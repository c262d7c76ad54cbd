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
_NO_PROSE: Final = ("#", "```", "|", "!", ":::", "-")
# What a guide may begin with, and does not tell what it is about.
_HINTS: Final = (
    "You can run the examples",
    "`python -m asyncio`",
    "With `pelton.sync`",
    "Do you come from",
    "From a clone",
)


class NavPage(NamedTuple):
    """A page in the navigation: the sections that it is in, outermost first, and its path below the pages."""

    sections: tuple[str, ...]
    path: str


def nav() -> list[NavPage]:
    """Return the pages in the order of the navigation."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    return list(_pages((), project["nav"]))


def _pages(sections: tuple[str, ...], entries: list[Any]) -> Iterator[NavPage]:
    for entry in entries:
        if isinstance(entry, str):
            yield NavPage(sections, entry)
            continue
        for title, below in entry.items():
            if isinstance(below, str):
                yield NavPage(sections, below)
            else:
                yield from _pages((*sections, title), below)


def llms_txt(pages: Path) -> str:
    """Return the text for programs that read documentation: one line for each page, with its address and its gist."""
    lines = ["# Pelton", "", f"> {_gist((pages / 'index.md').read_text())}"]
    section = None
    for page in nav():
        if page.sections[:1] != section:
            section = page.sections[:1]
            lines += ["", f"## {section[0] if section else 'Start'}", ""]
        text = (pages / page.path).read_text()
        lines.append(f"- [{_title(text)}]({_address(page.path)}): {_gist(text)}")
    return "\n".join(lines) + "\n"


def _address(path: str) -> str:
    folder, _, name = path.removesuffix(".md").rpartition("/")
    return "/".join([*filter(None, [folder, "" if name == "index" else name]), ""]) or "./"


def _title(text: str) -> str:
    found = _TITLE.search(text)
    assert found is not None
    return found[1].replace("`", "")


def _gist(text: str) -> str:
    """Return the first sentence of a page."""
    blocks = re.split(r"\n\s*\n", _TITLE.split(text, maxsplit=1)[2].strip())
    prose = " ".join(block for block in blocks if not block.startswith(_NO_PROSE))
    plain = " ".join(_LINK.sub(lambda found: found[1] or found[2] or "", prose).split())
    sentences = (one for one in re.split(r"(?<=\.)\s", plain) if one and not one.startswith(_HINTS))
    return next(sentences, _title(text)).rstrip(":").replace("**", "")
