"""The readme and the addresses of the project, as a package index shows them: a metadata hook of hatchling.

On an index, the readme's relative links lead nowhere. They become absolute below ``home`` in ``[tool.pelton]`` of
``pyproject.toml``, the address of the repository; as long as that is empty, they are plain text, and pictures are left
out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE: Final = re.compile(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*")
_LINK: Final = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]*)\)")


class IndexMetadata(MetadataHookInterface):
    """Sets ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields that ``pyproject.toml`` calls dynamic."""
        root = Path(self.root)
        home = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pelton"]["home"].rstrip("/")
        text = readme_for_index((root / "README.md").read_text(), home)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls_of(home)


def readme_for_index(text: str, home: str) -> str:
    """Return a readme without links that are relative."""
    if not home:
        return _LINK.sub(r"\2", _PICTURE.sub("", text))
    return _LINK.sub(lambda link: f"{link[1]}[{link[2]}]({home}/{'raw' if link[1] else 'blob'}/main/{link[3]})", text)


def urls_of(home: str) -> dict[str, str]:
    """Return the addresses of a project whose repository is at ``home``; none without one."""
    if not home:
        return {}
    main = f"{home}/blob/main"
    return {
        "Repository": home,
        "Documentation": f"{main}/docs/tutorial/README.md",
        "Changelog": f"{main}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
