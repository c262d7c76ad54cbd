"""Copies the pages of the repository to where the site is built from, and makes their links those of the site."""

from __future__ import annotations

import ast
import os
import re
import shutil
from pathlib import Path
from typing import Final

from tools.site.examples import FOLDER as EXAMPLES
from tools.site.public import public_names

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"

_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
# What is skipped, or a name in backticks.
_NAMED: Final = re.compile(
    r"^#.*$|\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)]*\)|``.+?``|`(?P<code>(?:pelton\.)?(?P<name>(?<=pelton\.)[A-Z]\w+|[A-Z]\w+Error))`",
    re.MULTILINE,
)
_PUBLIC: Final = {name.path.removeprefix("pelton."): name.path for name in public_names()}
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def sources() -> dict[Path, str]:
    """Return the files that are pages or pictures of the site, and the path of each there."""
    found = {
        ROOT / "README.md": "index.md",
        ROOT / "CONTRIBUTING.md": "project/contributing.md",
        ROOT / "CHANGELOG.md": "project/changes.md",
        ROOT / "LICENSE": "project/license.md",
    }
    for path in sorted(DOCS.rglob("*")):
        within = path.relative_to(DOCS)
        # The examples of the reference are shown with what they are examples of.
        if path.is_file() and EXAMPLES not in path.parents:
            found[path] = within.as_posix().replace("README.md", "index.md")
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        found[path] = f"project/measurements/{path.name}"
    for path in sorted((ROOT / "examples").glob("*.py")):
        found[path] = f"guides/examples/{path.stem}.md"
    return found


def copy_pages(folder: Path) -> None:
    """Write all pages that people write into a folder, from which the site is built."""
    known = sources()
    for source, place in known.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(with_links_of_the_site(source, known))
        elif place.endswith(".md"):
            target.write_text(_as_page(source))
        else:
            shutil.copyfile(source, target)


def with_links_of_the_site(source: Path, known: dict[Path, str]) -> str:
    """Return a page's text; links to what is no page, such as a source file, become their text alone."""

    def replaced(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target:
            return found[0]
        path = (source.parent / target).resolve()
        if path.is_dir() and (path / "README.md") in known:
            path /= "README.md"
        if path == EXAMPLES / "README.md":
            return f"[{text}]({os.path.relpath('reference/index.md', here)})"
        if path not in known:
            return text
        return f"{picture}[{text}]({os.path.relpath(known[path], here)}{anchor})"

    here = os.path.dirname(known[source])
    parts = _FENCE.split(source.read_text())
    return "".join(part if at % 2 else _LINK.sub(replaced, _with_names(part)) for at, part in enumerate(parts))


def _with_names(prose: str) -> str:
    """Link ``pelton.Name``, and names of errors, to the reference; but not in headings and links."""

    def linked(found: re.Match[str]) -> str:
        path = _PUBLIC.get(found["name"] or "")
        return f"[`{found['code']}`][{path}]" if path else found[0]

    return _NAMED.sub(linked, prose)


def _as_page(source: Path) -> str:
    text = source.read_text()
    if source.suffix == ".py":
        about = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
        return f"# {source.name}\n\n{about}\n\nFrom a clone: `python examples/{source.name}`\n\n```python\n{text}```\n"
    return f"# License\n\n```text\n{text}```\n"
