"""Which streams a query means by its option ``stream``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

# What writes note for themselves. A query that reads all streams and writes to one of them would never come to rest
# if it read its own notes; so patterns do not mean it, only its name does.
COMMIT_STREAM: Final = "SPARK_COMMITS"


def is_selected(name: str, asked: Iterable[str]) -> bool:
    """Whether names and patterns (``*``, ``?``) mean a stream."""
    return any(name == one or (name != COMMIT_STREAM and fnmatchcase(name, one)) for one in asked)
